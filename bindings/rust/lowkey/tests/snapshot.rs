// SPDX-License-Identifier: Apache-2.0
//! Snapshots through streams and files.
mod common;

use common::*;
use lowkey::*;

#[test]
fn snapshots_go_through_streams_and_files() {
    let rig = Rig::new("kitty-pro");
    let cache = rig.cache();
    let sequence = cache.add_sequence().unwrap();
    step(&cache, &sequence, 0..300).unwrap();
    let options = SnapshotOptions { fingerprint: b"model 7" };
    let mut bytes = Vec::new();
    cache.save(&[&sequence], options, &mut bytes).unwrap();

    let other = rig.cache();
    let loaded = other.load(options, bytes.as_slice(), 1).unwrap();
    assert_eq!(loaded[0].len().unwrap(), 300);
    let wanted = step(&cache, &sequence, 300..301).unwrap();
    assert_eq!(step(&other, &loaded[0], 300..301).unwrap(), wanted);

    let error = other.load(SnapshotOptions::default(), bytes.as_slice(), 1).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Mismatch);
    let error = other.load(options, &bytes[..bytes.len() / 2], 1).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert_eq!(other.load(options, bytes.as_slice(), 0).err().unwrap().kind, ErrorKind::Argument);

    let path = std::env::temp_dir().join(format!("lowkey-{}.lksnap", std::process::id()));
    cache.save_file(&[], options, &path).unwrap();
    assert_eq!(other.load_file(options, &path, 2).unwrap().len(), 1);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(other.load_file(options, &path, 2).err().unwrap().kind, ErrorKind::Io);

    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::Error::new(std::io::ErrorKind::Other, "the disk is full"))
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let error = cache.save(&[], options, Full).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Io);
    assert!(error.sentence.contains("the disk is full"), "{}", error);
}
