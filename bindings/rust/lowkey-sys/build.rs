// SPDX-License-Identifier: Apache-2.0
//! Says to Cargo where liblowkey is: in the folder LOWKEY_LIB_DIR, or else built from the crate's own sources with the
//! feature `vendored`, or else where pkg-config finds it. LOWKEY_STATIC=1 links the static library. Nothing is
//! downloaded.
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "build/vendored.rs"]
mod vendored;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build");
    for name in ["LOWKEY_LIB_DIR", "LOWKEY_STATIC", "PKG_CONFIG", "PKG_CONFIG_PATH", "DOCS_RS"] {
        println!("cargo:rerun-if-env-changed={}", name);
    }
    // Documentation is made from declarations alone.
    if env::var_os("DOCS_RS").is_some() {
        return;
    }
    let is_static = env::var_os("LOWKEY_STATIC").map_or(false, |value| value != "0");
    if let Some(dir) = env::var_os("LOWKEY_LIB_DIR") {
        link_folder(Path::new(&dir), is_static);
    } else if env::var_os("CARGO_FEATURE_VENDORED").is_some() {
        let prefix = vendored::build().unwrap_or_else(|sentence| panic!("{}", sentence));
        println!("cargo:include={}", prefix.join("include").display());
        link_folder(&prefix.join("lib"), true);
    } else {
        link_flags(&pkg_config(is_static), None);
    }
}

/// Flags of the installed library.
fn pkg_config(is_static: bool) -> String {
    let tool = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let package = if is_static { "lowkey-static >= 0.2" } else { "lowkey >= 0.2" };
    let remedy = "set PKG_CONFIG_PATH or LOWKEY_LIB_DIR, or use the feature vendored";
    let output = Command::new(&tool)
        .args(["--libs", package])
        .output()
        .unwrap_or_else(|error| panic!("{} does not run: {}; {}", tool, error, remedy));
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        panic!("{} does not know lowkey: {}; {}", tool, said.trim(), remedy);
    }
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Link the library of a folder. What the static one needs is in the description that is installed next to it.
fn link_folder(dir: &Path, is_static: bool) {
    if !is_static {
        return link_flags(&format!("-L{} -llowkey", dir.display()), None);
    }
    let description = dir.join("pkgconfig/lowkey-static.pc");
    let text = fs::read_to_string(&description)
        .unwrap_or_else(|error| panic!("{}: {}", description.display(), error));
    let flags = text.lines().find_map(|line| line.strip_prefix("Libs:"));
    link_flags(flags.unwrap_or_default(), Some(dir));
}

/// Pass flags of a linker on; `dir` stands for ${libdir} in them.
fn link_flags(flags: &str, dir: Option<&Path>) {
    for flag in flags.split_whitespace() {
        if let Some(dir) = flag.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={}", dir);
        } else if let Some(library) = flag.strip_prefix("-l") {
            println!("cargo:rustc-link-lib={}", library);
        } else if flag.ends_with("/liblowkey.a") {
            let file = PathBuf::from(flag);
            let folder = dir.or_else(|| file.parent()).unwrap_or_else(|| Path::new("/"));
            println!("cargo:rustc-link-search=native={}", folder.display());
            println!("cargo:rustc-link-lib=static=lowkey");
        }
    }
}
