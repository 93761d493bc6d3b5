// SPDX-License-Identifier: Apache-2.0
//! Builds the library by Meson, from the crate's folder `library` or, in lowkey's repository, from the repository.
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const REMEDY: &str = "the feature vendored needs a C++ compiler, Meson 0.61.2 or later, and Ninja \
                      (Debian: g++ meson ninja-build; elsewhere: pip install meson ninja)";

/// The library alone. LOWKEY_MESON_ARGS, which comes later, may name devices.
const OPTIONS: &[&str] = &[
    "-Dlibdir=lib",
    "-Dbuildtype=release",
    "-Ddefault_library=static",
    "-Dcli=disabled",
    "-Dexamples=disabled",
    "-Dtests=disabled",
    "-Dcuda=disabled",
    "-Dvulkan=disabled",
    "--wrap-mode=nodownload",
];

/// The prefix that the library was installed to, or the sentence of a refusal.
pub fn build() -> Result<PathBuf, String> {
    println!("cargo:rerun-if-env-changed=LOWKEY_MESON_ARGS");
    let source = source_folder()?;
    for part in ["meson.build", "meson_options.txt", "include", "src", "cuda", "shaders"] {
        println!("cargo:rerun-if-changed={}", source.join(part).display());
    }
    let arguments = env::var("LOWKEY_MESON_ARGS").unwrap_or_default();
    let (target, host) = (variable("TARGET")?, variable("HOST")?);
    if target != host && !arguments.contains("--cross-file") {
        return Err(format!(
            "the feature vendored compiles for {} on {} by a cross file of Meson: \
             LOWKEY_MESON_ARGS=\"--cross-file FILE\"",
            target, host
        ));
    }
    let out = PathBuf::from(variable("OUT_DIR")?);
    let (build, prefix) = (out.join("build"), out.join("prefix"));
    let mut setup = Command::new("meson");
    setup.arg("setup").arg(&build).arg(&source).arg("--prefix").arg(&prefix).args(OPTIONS);
    if source.join("subprojects/nlohmann_json.wrap").exists() {
        setup.arg("--force-fallback-for=nlohmann_json,libxxhash");
    }
    setup.args(arguments.split_whitespace());
    if build.join("build.ninja").exists() {
        setup.arg("--reconfigure");
    }
    run(&mut setup)?;
    let jobs = env::var("NUM_JOBS").unwrap_or_else(|_| "1".into());
    run(Command::new("meson").args(["compile", "-j", &jobs, "-C"]).arg(&build))?;
    run(Command::new("meson").args(["install", "--no-rebuild", "--quiet", "-C"]).arg(&build))?;
    Ok(prefix)
}

fn source_folder() -> Result<PathBuf, String> {
    let crate_folder = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let mut places = vec![crate_folder.join("library")];
    places.extend(crate_folder.ancestors().nth(3).map(Path::to_path_buf));
    places.into_iter().find(|folder| folder.join("include/lowkey").is_dir()).ok_or_else(|| {
        format!("{} has no sources of the library in the folder library", crate_folder.display())
    })
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("{} is not set: Cargo runs this program", name))
}

fn run(command: &mut Command) -> Result<(), String> {
    // A folder that packages are staged in must not receive the library, and Cargo reads the standard output.
    command.env_remove("DESTDIR");
    let output =
        command.output().map_err(|error| format!("meson does not run: {}; {}", error, REMEDY))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "meson failed:\n{}{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        REMEDY
    ))
}
