//! Stories about files and the web.

use std::{
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
};

use remex_client::{
    Client, ErrorKind,
    fs::{Depth, IfMatch},
};
use remex_proto::error::NOT_FOUND;

use super::Place;
use crate::support::Web;

pub(crate) async fn a_file_is_read_as_it_was_written(place: Place) {
    let client = place.client().await;
    let fs = client.fs();
    let (path, content) = (place.path("a file"), (0..=255).collect::<Vec<u8>>().repeat(100));
    fs.write(&path, &content).await.unwrap();
    assert_eq!(fs.read(&path).await.unwrap(), content);
    let metadata = fs.metadata(&path).await.unwrap();
    assert!(metadata.is_file && !metadata.is_directory, "{metadata:?}");
    assert!(fs.exists(&path).await.unwrap() && !fs.exists(place.path("other")).await.unwrap());
    assert_eq!(fs.read(from_working_directory(&client, &path).await).await.unwrap(), content);
}

/// Returns a path relative to the working directory of the server.
pub(super) async fn from_working_directory(client: &Client, path: &Path) -> String {
    let directory = client.info().await.unwrap().cwd.expect("a server has a working directory").to_string();
    let up = "../".repeat(directory.split('/').filter(|name| !name.is_empty()).count());
    format!("{up}{}", path.strip_prefix("/").unwrap().display())
}

pub(crate) async fn missing_files_are_reported_as_not_found(place: Place) {
    let fs = place.client().await.fs();
    for error in [
        fs.read(place.path("none")).await.unwrap_err(),
        fs.metadata(place.path("none")).await.unwrap_err(),
        fs.read_dir(place.path("none")).await.unwrap_err(),
        fs.open(place.path("none")).await.unwrap_err(),
    ] {
        let remex_client::Error::Refused(refusal) = error else { panic!("{error:?}") };
        assert_eq!(refusal.code, NOT_FOUND, "{refusal:?}");
    }
}

pub(crate) async fn directories_are_created_listed_copied_and_removed(place: Place) {
    let fs = place.client().await.fs();
    fs.create_dir_all(place.path("one/two")).await.unwrap();
    fs.write(place.path("one/file"), "x").await.unwrap();
    let mut names: Vec<_> =
        fs.read_dir(place.path("one")).await.unwrap().into_iter().map(|entry| entry.file_name).collect();
    names.sort();
    assert_eq!(names, ["file", "two"]);
    fs.copy(place.path("one"), place.path("copy")).recursive().await.unwrap();
    assert_eq!(fs.read(place.path("copy/file")).await.unwrap(), "x");
    fs.remove(place.path("one")).recursive().missing_ok().await.unwrap();
    assert!(!place.path("one").exists() && place.path("copy/two").is_dir());
}

pub(crate) async fn a_large_file_is_uploaded_and_downloaded_completely(place: Place) {
    let fs = place.client().await.fs();
    let content: Vec<u8> =
        (0..5_000_003_u32).map(|byte| (byte.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let path = place.path("large");
    let mut steps = Vec::new();
    let size =
        fs.upload(content.as_slice(), &path).progress(|progress| steps.push(progress.bytes)).await.unwrap();
    assert_eq!(size, content.len() as u64);
    assert!(steps.is_sorted() && steps.last() == Some(&size), "{steps:?}");
    assert!(std::fs::read(&path).unwrap() == content);
    let mut back = Vec::new();
    let size = fs.download(&path, &mut back).await.unwrap();
    assert!(size == content.len() as u64 && back == content);
    assert_eq!(std::fs::read_dir(place.path("")).unwrap().count(), 1, "nothing else is left");
}

pub(crate) async fn a_file_is_replaced_only_if_it_matches_the_expected_hash(place: Place) {
    let fs = place.client().await.fs();
    let path = place.path("list");
    let hash = fs.write(&path, "one").if_match(IfMatch::Absent).atomic().await.unwrap();
    std::fs::write(&path, "somebody else").unwrap();
    let error = fs.write(&path, "two").if_match(IfMatch::Content(hash)).atomic().await.unwrap_err();
    assert_eq!(error.kind(), Some(ErrorKind::ContentChanged));
    assert_eq!(fs.read(&path).await.unwrap(), "somebody else");
}

pub(crate) async fn a_tree_is_unchanged_by_upload_and_download(place: Place) {
    let fs = place.client().await.fs();
    let here = tempfile::tempdir().unwrap();
    let root = here.path().join("tree");
    std::fs::create_dir_all(root.join("a/empty")).unwrap();
    for number in 0..50 {
        std::fs::write(root.join(format!("a/{number}")), vec![b'x'; number * 1000]).unwrap();
    }
    std::fs::write(root.join("tool"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(root.join("tool"), std::fs::Permissions::from_mode(0o751)).unwrap();
    symlink("a/49", root.join("link")).unwrap();

    let up = fs.upload_tree(&root, place.path("there")).await.unwrap();
    assert_eq!((up.files, up.directories, up.links, up.special), (51, 2, 1, 0));
    let back = here.path().join("back");
    let down = fs.download_tree(place.path("there"), &back).await.unwrap();
    assert_eq!((down.files, down.bytes), (up.files, up.bytes));
    for copy in [place.path("there"), back] {
        for number in 0..50 {
            assert_eq!(std::fs::read(copy.join(format!("a/{number}"))).unwrap().len(), number * 1000);
        }
        assert!(copy.join("a/empty").is_dir());
        assert_eq!(std::fs::read_link(copy.join("link")).unwrap().to_str(), Some("a/49"));
        assert_eq!(std::fs::metadata(copy.join("tool")).unwrap().permissions().mode() & 0o7777, 0o751);
    }
}

pub(crate) async fn a_change_is_reported(place: Place) {
    let fs = place.client().await.fs();
    fs.create_dir_all(place.path("watched/deep")).await.unwrap();
    let mut watch = fs.watch(place.path("watched"), Depth::Everything).await.unwrap();
    fs.write(place.path("watched/deep/news"), "x").await.unwrap();
    loop {
        let changes = watch.next().await.unwrap();
        if changes.changes.iter().any(|change| change.path.to_string().ends_with("deep/news")) {
            break;
        }
    }
}

pub(crate) async fn http_requests_are_sent_from_the_host(place: Place) {
    let web = Web::answering("HTTP/1.1 200 OK\r\nx-seen: yes\r\ncontent-length: 8\r\n\r\nthe body");
    let http = place.client().await.http();
    let url = web.url("/page");
    let response = http.get(&url).send().await.unwrap();
    assert_eq!((response.status, &response.body[..]), (200, &b"the body"[..]));
    let mut streamed = http.get(&url).stream().await.unwrap();
    assert_eq!((streamed.status, streamed.header("x-seen")), (200, Some("yes")));
    let mut body = Vec::new();
    while let Some(chunk) = streamed.body.chunk().await.unwrap() {
        body.extend_from_slice(&chunk);
    }
    assert_eq!(body, b"the body");
}
