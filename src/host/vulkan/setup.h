// The steps of vulkan_host_open(). vulkan_host_close() ends the objects of a failed step.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef VULKAN_SETUP_H
#define VULKAN_SETUP_H

#include "host.h"

// Load libvulkan and make an instance, under the validation layer when the options say so.
vulkan_failure vulkan_open_instance(const vulkan_host_options *options, vulkan_host *host);
// Take the device of the options' index, with what lowkey can use of it, and one queue.
vulkan_failure vulkan_open_device(const vulkan_host_options *options, vulkan_host *host);

#endif
