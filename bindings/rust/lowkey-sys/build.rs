//! Finds the installed library in the folder LOWKEY_LIB_DIR, or else through pkg-config.
//! LOWKEY_STATIC=1 links the static library. Nothing is downloaded or compiled.
use std::env;
use std::process::Command;

fn main() {
    for name in ["LOWKEY_LIB_DIR", "LOWKEY_STATIC", "PKG_CONFIG", "PKG_CONFIG_PATH"] {
        println!("cargo:rerun-if-env-changed={}", name);
    }
    let is_static = env::var_os("LOWKEY_STATIC").map_or(false, |value| value != "0");
    if let Some(dir) = env::var_os("LOWKEY_LIB_DIR") {
        println!("cargo:rustc-link-search=native={}", dir.to_string_lossy());
        link_by_name(is_static);
        return;
    }
    let tool = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let mut command = Command::new(&tool);
    if is_static {
        command.arg("--static");
    }
    let output = command
        .args(["--libs", "lowkey >= 0.2"])
        .output()
        .unwrap_or_else(|error| panic!("{} does not run: {}; set LOWKEY_LIB_DIR", tool, error));
    if !output.status.success() {
        panic!(
            "{} does not know lowkey: {}; set PKG_CONFIG_PATH or LOWKEY_LIB_DIR",
            tool,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let flags = String::from_utf8_lossy(&output.stdout).into_owned();
    for flag in flags.split_whitespace() {
        if let Some(dir) = flag.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={}", dir);
        } else if flag == "-llowkey" {
            link_by_name(is_static);
        } else if let Some(library) = flag.strip_prefix("-l") {
            println!("cargo:rustc-link-lib={}", library);
        }
    }
}

fn link_by_name(is_static: bool) {
    let kind = if is_static { "static" } else { "dylib" };
    println!("cargo:rustc-link-lib={}=lowkey", kind);
}
