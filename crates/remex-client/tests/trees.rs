//! Tree copies between this host and a server in this process.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]
#![cfg(unix)]

use std::{
    fs::{self, Permissions},
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink},
    path::Path,
    process::Command,
};

use remex_client::{Client, ErrorKind};

/// Entries with bits that give a program or a directory the rights of its owner, and the permissions that are copied.
const SPECIAL: [(&str, u32, u32); 5] = [
    ("", 0o2750, 0o750),
    ("tool", 0o4755, 0o755),
    ("large", 0o6711, 0o711),
    ("team", 0o2775, 0o775),
    ("team/sticky", 0o1777, 0o777),
];

fn make_source(root: &Path) {
    fs::create_dir_all(root.join("team/sticky")).unwrap();
    fs::write(root.join("tool"), "#!/bin/sh\n").unwrap();
    // More than one message.
    fs::write(root.join("large"), vec![b'x'; 1 << 20]).unwrap();
    for (name, mode, _) in SPECIAL {
        fs::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
        assert_eq!(mode_of(&root.join(name)), mode, "this file system does not keep the mode of `{name}`");
    }
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn assert_copied(root: &Path) {
    for (name, _, mode) in SPECIAL {
        assert_eq!(format!("{:o}", mode_of(&root.join(name))), format!("{mode:o}"), "of `{name}`");
    }
}

#[tokio::test]
async fn an_upload_copies_no_more_permissions_than_a_download() {
    let client = Client::connect(remex::Local::here().unwrap().target()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let [from, up, down] = ["from", "up", "down"].map(|name| directory.path().join(name));
    make_source(&from);

    let report = client.fs().upload_tree(&from, &up).await.unwrap();
    assert_eq!((report.files, report.failures.len()), (2, 0));
    assert_copied(&up);

    let report = client.fs().download_tree(&from, &down).await.unwrap();
    assert_eq!((report.files, report.failures.len()), (2, 0));
    assert_copied(&down);
}

#[tokio::test]
async fn a_repeated_upload_removes_special_bits_from_unchanged_files() {
    let client = Client::connect(remex::Local::here().unwrap().target()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let [from, up] = ["from", "up"].map(|name| directory.path().join(name));
    make_source(&from);
    let report = client.fs().upload_tree(&from, &up).await.unwrap();
    assert_eq!((report.files, report.failures.len()), (2, 0));
    for name in ["tool", "large"] {
        fs::set_permissions(up.join(name), Permissions::from_mode(0o4755)).unwrap();
    }

    let report = client.fs().upload_tree(&from, &up).await.unwrap();
    assert_eq!((report.files, report.unchanged), (0, 2));
    assert_copied(&up);
}

#[tokio::test]
async fn a_pipe_at_the_destination_is_neither_replaced_nor_written_to() {
    let client = Client::connect(remex::Local::here().unwrap().target()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let [from, up, down] = ["from", "up", "down"].map(|name| directory.path().join(name));
    fs::create_dir(&from).unwrap();
    fs::write(from.join("name"), "a file").unwrap();
    symlink("name", from.join("link")).unwrap();
    for to in [&up, &down] {
        fs::create_dir(to).unwrap();
        let pipes = ["name", "link"].map(|name| to.join(name));
        assert!(Command::new("mkfifo").args(pipes).status().unwrap().success());
    }

    let uploaded = client.fs().upload_tree(&from, &up).await.unwrap();
    let downloaded = client.fs().download_tree(&from, &down).await.unwrap();
    for (report, to) in [(uploaded, up), (downloaded, down)] {
        let failures: Vec<_> = report.failures.iter().map(|failure| failure.error.kind()).collect();
        assert_eq!(failures, [Some(ErrorKind::NotAFile); 2]);
        for name in ["name", "link"] {
            assert!(fs::symlink_metadata(to.join(name)).unwrap().file_type().is_fifo(), "{name}");
        }
    }
}
