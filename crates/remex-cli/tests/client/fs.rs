//! Files through the client library, on the real program.

mod foreign_servers;
mod trees;
mod watches;

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs as local,
    io::Cursor,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt as _, symlink},
    },
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, UNIX_EPOCH},
};

use remex_client::{
    Client, Error, ErrorKind, Link, Target,
    fs::{ChangeKind, Depth, Fs, IfMatch, Progress, Times, WalkOptions},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    time::timeout,
};

use crate::support::{self, DisconnectingProxy, InTime as _, PATIENCE, Place, Server};

const MIB: usize = 1 << 20;

async fn connect(address: &str) -> Fs {
    Client::connect(Target::parse(address).unwrap()).await.unwrap().fs()
}

/// Starts one server for each kind of socket.
fn servers() -> [Server; 2] {
    [Server::start(), Server::unix(&[])]
}

/// Returns bytes that differ everywhere, so that a block in the wrong place shows.
fn content(len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes = words.map(u64::to_le_bytes).collect::<Vec<_>>().into_flattened();
    bytes.truncate(len);
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_files_are_written_and_read_back() {
    for server in servers() {
        let (fs, place) = (connect(server.address()).await, Place::new());
        let path = place.path("a");
        fs.write(&path, "one").await.unwrap();
        let inode = local::metadata(&path).unwrap().ino();
        let written = fs.write(&path, "two").atomic().await.unwrap();
        assert_eq!(written, fs.hash(&path).await.unwrap().hash);
        assert_ne!(local::metadata(&path).unwrap().ino(), inode);
        assert_eq!(&fs.read(&path).await.unwrap()[..], b"two");
        let refused = fs.write(&path, "x").if_match(IfMatch::Absent).await.unwrap_err();
        assert_eq!(refused.kind(), Some(ErrorKind::ContentChanged));
        let hash = fs.hash(&path).await.unwrap().hash;
        let next = fs.write(&path, "three").if_match(IfMatch::Content(hash)).atomic().await.unwrap();
        assert_eq!(next, fs.hash_part(&path, 0, 5).await.unwrap().hash);
        assert_eq!(&fs.read(place.uri("a")).await.unwrap()[..], b"three");
        let missing = fs.read(place.path("b")).await.unwrap_err();
        assert_eq!(missing.kind(), Some(ErrorKind::NotFound));
        assert!(matches!(fs.read("").await, Err(Error::Usage { .. })));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn renames_directories_and_links_work() {
    let server = Server::unix(&[]);
    let (fs, place) = (connect(server.address()).await, Place::new());
    let path = |name: &str| place.path(name);
    fs.create_dir(path("d")).await.unwrap();
    assert!(fs.create_dir(path("d")).await.is_err());
    fs.create_dir_all(path("d/e/f")).await.unwrap();
    fs.write(path("d/file"), "x").await.unwrap();
    fs.copy(path("d/file"), path("d/copy")).await.unwrap();
    fs.copy(path("d"), path("twin")).recursive().await.unwrap();
    fs.rename(path("d/copy"), path("moved")).await.unwrap();
    let refused = fs.rename(path("moved"), path("d/file")).keep_existing().await.unwrap_err();
    assert_eq!(refused.kind(), Some(ErrorKind::AlreadyExists));
    fs.symlink("d/file", path("link")).await.unwrap();
    assert_eq!(fs.read_link(path("link")).await.unwrap().target, "d/file");
    assert!(fs.metadata(path("link")).await.unwrap().is_symlink);
    assert!(fs.metadata(path("link")).without_links().await.is_err());
    let canonical = local::canonicalize(path("d/file")).unwrap();
    assert_eq!(fs.canonicalize(path("link")).await.unwrap().native().unwrap(), canonical);
    fs.set_permissions(path("moved"), 0o640).await.unwrap();
    let times = Times::default().modified(UNIX_EPOCH + Duration::from_millis(1_234_567));
    fs.set_times(path("moved"), times).await.unwrap();
    let metadata = fs.metadata(path("moved")).await.unwrap();
    assert_eq!((metadata.mode, metadata.modified_at_ms), (Some(0o640), 1_234_567));

    let names: Vec<_> =
        fs.read_dir(path("")).await.unwrap().into_iter().map(|entry| entry.file_name).collect();
    assert_eq!(names, ["d", "link", "moved", "twin"]);
    let options = WalkOptions::default().max_depth(9).max_directories(9).max_entries(99);
    assert_eq!(fs.walk(path("twin"), options).await.unwrap().entries.len(), 4);

    fs.remove(path("link")).await.unwrap();
    assert!(fs.remove(path("link")).await.is_err());
    assert_eq!(fs.remove(path("d")).await.unwrap_err().kind(), Some(ErrorKind::NotEmpty));
    fs.remove(path("d")).recursive().missing_ok().await.unwrap();
    fs.remove(path("d")).recursive().missing_ok().await.unwrap();
    assert!(!fs.exists(path("d")).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_directory_is_listed_in_pages() {
    let server = Server::unix(&[]);
    let (fs, place) = (connect(server.address()).await, Place::in_memory());
    for number in 0..3500 {
        place.write(&format!("many/{number:04}"), "");
    }
    let mut pages = fs.read_dir_pages(place.path("many")).unwrap();
    let mut counts = Vec::new();
    while let Some(page) = pages.next().await.unwrap() {
        counts.push(page.len());
    }
    assert_eq!(counts, [1000, 2000, 500]);
    assert_eq!(fs.read_dir(place.path("many")).await.unwrap().len(), 3500);
}

/// Uploads and downloads, and checks every byte and that progress only grows.
async fn there_and_back(fs: &Fs, place: &Place, content: &[u8]) {
    let steps = Mutex::new(Vec::<Progress>::new());
    let note = |progress: &Progress| steps.lock().unwrap().push(progress.clone());
    let len = content.len() as u64;
    assert_eq!(fs.upload(Cursor::new(content), place.path("file")).progress(note).await.unwrap(), len);
    check_steps(&steps, len);
    assert!(local::read(place.path("file")).unwrap() == content, "the file has what was sent");
    let mut back = Vec::new();
    assert_eq!(fs.download(place.path("file"), &mut back).progress(note).await.unwrap(), len);
    check_steps(&steps, len);
    assert!(back == content, "what comes back is what was sent");
    assert_eq!(place.names(""), ["file"], "nothing is left behind");
}

fn check_steps(steps: &Mutex<Vec<Progress>>, len: u64) {
    let steps = std::mem::take(&mut *steps.lock().unwrap());
    assert!(steps.windows(2).all(|pair| pair[0].bytes <= pair[1].bytes), "progress only grows");
    assert!(steps.len() as u64 > len / MIB as u64, "progress is told often");
    let last = steps.last().unwrap();
    assert_eq!((last.files, last.bytes), (1, len));
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_any_size_round_trip() {
    for server in servers() {
        let (fs, place) = (connect(server.address()).await, Place::new());
        for len in [0, 1, 256 << 10, MIB, 20 * MIB + 12_345] {
            there_and_back(&fs, &place, &content(len)).await;
        }
        let mut file = fs.open(place.path("file")).await.unwrap();
        let mut start = vec![0; 100_000];
        file.read_exact(&mut start).await.unwrap();
        assert!(start == content(100_000));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnects_during_transfers_are_transparent() {
    for server in servers() {
        let plan: Vec<u64> = (1..12).map(|number| number * 700_001).collect();
        let proxy = DisconnectingProxy::start(server.address(), &plan);
        let (fs, place) = (connect(proxy.address()).await, Place::new());
        there_and_back(&fs, &place, &content(20 * MIB)).await;
        assert_eq!(proxy.disconnects_left(), 0, "the transfers met every cut");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_copied_over_connections_that_are_too_short_for_a_block() {
    for server in servers() {
        let place = Place::new();
        let expected = content(100_000);
        let path = place.write("large", expected.clone());
        for is_upload in [true, false] {
            let proxy = DisconnectingProxy::start(server.address(), &[60_000; 1000]);
            let fs = connect(proxy.address()).await;
            if is_upload {
                assert_eq!(fs.upload(&expected[..], place.path("copy")).await, Ok(100_000));
                assert!(local::read(place.path("copy")).unwrap() == expected);
            } else {
                let mut copy = Vec::new();
                assert_eq!(fs.download(&path, &mut copy).await, Ok(100_000));
                assert!(copy == expected);
            }
            assert!(proxy.disconnects_left() < 997, "it was cut {} times", 1000 - proxy.disconnects_left());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_survives_a_disconnect_at_any_point() {
    let server = Server::unix(&[]);
    let place = Place::new();
    let whole = DisconnectingProxy::start(server.address(), &[]);
    let fs = connect(whole.address()).await;
    let handshake = whole.carried();
    fs.upload(&b"x"[..], place.path("file")).await.unwrap();
    for after in (handshake..whole.carried() + 500).step_by(29) {
        let proxy = DisconnectingProxy::start(server.address(), &[after]);
        let client = Client::connect(Target::parse(proxy.address()).unwrap()).await.unwrap();
        let fs = client.fs();
        let content = after.to_string().repeat(50);
        let uploaded = fs.upload(content.as_bytes(), place.path("file")).await;
        assert_eq!(uploaded, Ok(content.len() as u64), "cut after {after} bytes");
        assert_eq!(place.read("file"), content, "cut after {after} bytes");
        assert_eq!(place.names(""), ["file"], "cut after {after} bytes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changed_during_a_disconnect_is_not_mixed_up() {
    for server in servers() {
        let place = Place::new();
        let path = place.write("file", content(8 * MIB));
        let change = path.clone();
        let proxy = DisconnectingProxy::with_notice(server.address(), &[3_000_000], move || {
            local::write(&change, "something else").unwrap();
        });
        let fs = connect(proxy.address()).await;
        let changed = Error::Changed { path: path.display().to_string() };
        assert_eq!(fs.download(&path, &mut tokio::io::sink()).await, Err(changed));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_under_a_download_is_an_error() {
    let server = Server::unix(&[]);
    let (fs, place) = (connect(server.address()).await, Place::new());
    let path = place.write("file", content(8 * MIB));
    let (mut is_changed, mut nowhere) = (false, tokio::io::sink());
    let downloaded = fs.download(&path, &mut nowhere).progress(|_| {
        if !std::mem::replace(&mut is_changed, true) {
            local::OpenOptions::new().append(true).open(&path).unwrap().set_len(7 * MIB as u64).unwrap();
        }
    });
    assert!(matches!(downloaded.await, Err(Error::Changed { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_keeps_the_permissions_of_the_replaced_file() {
    let server = Server::unix(&[]);
    let (fs, place) = (connect(server.address()).await, Place::new());
    let path = place.write("real/file", "old");
    place.link("real/file", "link");
    local::set_permissions(&path, local::Permissions::from_mode(0o751)).unwrap();
    let mode = || local::metadata(&path).unwrap().permissions().mode() & 0o7777;
    fs.upload(&b"new"[..], place.path("link")).await.unwrap();
    assert_eq!((place.read("real/file"), mode()), ("new".to_owned(), 0o751));
    assert!(local::symlink_metadata(place.path("link")).unwrap().is_symlink());
    fs.upload(&b"newer"[..], &path).permissions(0o600).await.unwrap();
    assert_eq!((place.read("real/file"), mode()), ("newer".to_owned(), 0o600));
    let refused = fs.upload(&b"x"[..], place.path("real")).await;
    assert!(matches!(refused, Err(Error::Usage { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_replaces_regular_files_only() {
    let server = Server::unix(&[]);
    let (fs, place) = (connect(server.address()).await, Place::new());
    place.fifo("pipe");
    let _socket = std::os::unix::net::UnixListener::bind(place.path("socket")).unwrap();
    for name in ["pipe", "socket"] {
        let refused = fs.upload(&b"x"[..], place.path(name)).await.unwrap_err();
        assert_eq!(refused.kind(), Some(ErrorKind::NotAFile), "{refused}");
        for len in [1, MIB] {
            local::create_dir_all(place.path("tree")).unwrap();
            local::write(place.path("tree").join(name), content(len)).unwrap();
            let copy = fs.upload_tree(place.path("tree"), place.path(""));
            let refused = copy.stop_at_first_failure().await.unwrap_err();
            assert_eq!(refused.kind(), Some(ErrorKind::NotAFile), "{refused}");
        }
        local::remove_dir_all(place.path("tree")).unwrap();
        assert!(!local::metadata(place.path(name)).unwrap().is_file());
    }
    for name in ["new/", "new/."] {
        let path = format!("{}/{name}", place.path("").display());
        let refused = fs.upload(&b"x"[..], path.as_str()).await.unwrap_err();
        assert!(matches!(&refused, Error::Usage { hint, .. } if hint == "name the file"), "{refused}");
    }
    assert_eq!(place.names(""), ["pipe", "socket"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dangling_link_is_followed_by_an_upload() {
    let server = Server::unix(&[]);
    let (fs, place) = (connect(server.address()).await, Place::new());
    local::create_dir(place.path("real")).unwrap();
    place.link("second", "first");
    place.link("real/file", "second");
    fs.upload(&b"new"[..], place.path("first")).await.unwrap();
    assert_eq!(place.read("real/file"), "new");
    assert_eq!(local::read_link(place.path("second")).unwrap(), Path::new("real/file"));
    place.link("round", "round");
    assert!(fs.upload(&b"new"[..], place.path("round")).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn temporary_files_of_transfers_are_as_private_as_the_source() {
    let server = Server::unix(&[]);
    let (fs, place) = (connect(server.address()).await, Place::new());
    let path = place.write("file", "old");
    local::set_permissions(&path, local::Permissions::from_mode(0o600)).unwrap();
    for permissions in [None, Some(0o640)] {
        let (mut writer, reader) = tokio::io::duplex(MIB);
        let seen = Mutex::new(Vec::new());
        let look = |_: &Progress| {
            let names = place.names("").into_iter().filter(|name| name.starts_with('.'));
            let mode = |name: String| local::metadata(place.path(&name)).unwrap().mode() & 0o777;
            seen.lock().unwrap().extend(names.map(mode));
        };
        let feeding = async {
            writer.write_all(&content(3 * MIB)).await.unwrap();
            drop(writer);
        };
        let upload = fs.upload(reader, &path).progress(look);
        let upload = match permissions {
            Some(mode) => upload.permissions(mode),
            None => upload,
        };
        let (sent, ()) = tokio::join!(upload, feeding);
        assert_eq!(sent.unwrap(), 3 * MIB as u64);
        let seen = seen.into_inner().unwrap();
        assert!(!seen.is_empty() && seen.iter().all(|mode| *mode == 0o600), "{seen:?}");
    }
    assert_eq!(local::metadata(&path).unwrap().mode() & 0o777, 0o640);
    let usual = local::metadata(place.write("usual", "")).unwrap().mode();
    fs.upload(&b"new"[..], place.path("new")).await.unwrap();
    assert_eq!(local::metadata(place.path("new")).unwrap().mode(), usual);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_of_a_refused_upload_names_its_destination() {
    let server = Server::unix(&[]);
    let (fs, place) = (connect(server.address()).await, Place::new());
    let path = place.path("missing/file");
    let refused = fs.upload(&b"x"[..], &path).await.unwrap_err();
    assert_eq!(refused.kind(), Some(ErrorKind::NotFound));
    let text = format!("{refused} {:?}", refused.hint());
    assert!(!text.contains(".remex-"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_or_dropped_upload_leaves_only_the_old_file() {
    let server = Server::unix(&[]);
    let (fs, place) = (connect(server.address()).await, Place::new());
    let path = place.write("file", "old");
    let broken = broken_reader();
    let failed = fs.upload(broken, &path).await;
    assert!(matches!(&failed, Err(Error::Local { .. })), "{failed:?}");
    settle(&fs, &place).await;

    let (mut writer, reader) = tokio::io::duplex(MIB);
    writer.write_all(&content(MIB)).await.unwrap();
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let begun = Mutex::new(Some(begun));
    let uploading = fs.upload(reader, &path).progress(|_| {
        begun.lock().unwrap().take().map(|it| it.send(()));
    });
    let feeding = async {
        // More than the window, so that something has to be answered first.
        writer.write_all(&content(2 * MIB)).await.unwrap();
        has_begun.await.unwrap();
        assert_eq!(place.names("").len(), 2);
    };
    tokio::select! {
        done = uploading => panic!("the reader has no end: {done:?}"),
        () = feeding => {}
    }
    settle(&fs, &place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_concurrent_transfers_is_unlimited() {
    const MANY: usize = 300;
    let server = Server::unix(&[]);
    let (fs, place) = (connect(server.address()).await, Place::in_memory());
    let source = place.write("source", content(3 * MIB / 2));
    // Held buffers are not waited for, and leave room.
    let mut held = Vec::new();
    for _ in 0..64 {
        held.push(fs.open(&source).await.unwrap());
    }
    let mut uploads = tokio::task::JoinSet::new();
    for number in 0..MANY {
        let (fs, path) = (fs.clone(), place.path(&format!("copy-{number}")));
        uploads.spawn(async move { fs.upload(&b"content"[..], path).await });
    }
    let sent = timeout(PATIENCE, uploads.join_all()).await.unwrap();
    assert_eq!(sent, vec![Ok(7); MANY]);
    drop(held);

    // Each upload waits for its download, so none may keep a download from its turn.
    local::write(&source, "content").unwrap();
    let mut copies = tokio::task::JoinSet::new();
    for number in 0..MANY {
        let (fs, from, to) = (fs.clone(), source.clone(), place.path(&format!("copy-{number}")));
        copies.spawn(async move {
            let (mut writer, reader) = tokio::io::duplex(1024);
            let download = async {
                let came = fs.download(from, &mut writer).await;
                drop(writer);
                came
            };
            tokio::join!(download, fs.upload(reader, to))
        });
    }
    let copied = timeout(PATIENCE, copies.join_all()).await.unwrap();
    assert_eq!(copied, vec![(Ok(7), Ok(7)); MANY]);
}

/// Returns a reader that fails after a while.
fn broken_reader() -> impl tokio::io::AsyncRead + Unpin {
    struct Broken;
    impl tokio::io::AsyncRead for Broken {
        fn poll_read(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            _: &mut tokio::io::ReadBuf<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::task::Poll::Ready(Err(std::io::Error::other("the disk is on fire")))
        }
    }
    Cursor::new(content(3 * MIB)).chain(Broken)
}

/// Waits until whatever was to be removed is, and checks what is left.
async fn settle(fs: &Fs, place: &Place) {
    for name in place.names("").iter().filter(|name| name.starts_with('.')) {
        // Requests for one path are done in order.
        let _ = fs.exists(place.path(name)).await;
    }
    assert_eq!(place.names(""), ["file"]);
    assert_eq!(place.read("file"), "old");
}
