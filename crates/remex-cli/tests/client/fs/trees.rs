//! Directory trees up and down, on the real program.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use remex_client::fs::{SkipUnchanged, TreeReport};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_copy_replaces_running_programs_and_outward_links() {
    let server = Server::unix(&[]);
    let (fs, place) = (connect(server.address()).await, Place::new());
    for (name, len) in [("tool", 9), ("small", 9), ("large", MIB), ("dangling", 9)] {
        place.write(&format!("tree/{name}"), "");
        local::write(place.path("tree").join(name), content(len)).unwrap();
    }
    place.write("there/outside", "mine");
    place.write("up/nothing", "");
    local::copy("/bin/sleep", place.path("up/tool")).unwrap();
    let mut running = std::process::Command::new(place.path("up/tool")).arg("600").spawn().unwrap();
    for name in ["small", "large"] {
        place.link("../there/outside", &format!("up/{name}"));
    }
    place.link("../there/new", "up/dangling");
    let uploaded = fs.upload_tree(place.path("tree"), place.path("up")).await;
    running.kill().unwrap();
    running.ended();
    assert_eq!(uploaded.unwrap().files, 4);
    assert_eq!(
        (place.read("there/outside"), place.names("there")),
        ("mine".to_owned(), vec!["outside".to_owned()])
    );
    local::remove_file(place.path("up/nothing")).unwrap();
    assert!(picture(&place.path("up")) == picture(&place.path("tree")), "what is there is what was here");

    place.write("tree/directory/file", "x");
    place.link("../there", "up/directory");
    let copy = fs.upload_tree(place.path("tree"), place.path("up"));
    let refused = copy.stop_at_first_failure().await.unwrap_err();
    assert!(matches!(&refused, Error::Usage { message, .. } if message.contains("link")), "{refused}");
    assert_eq!(place.names("there"), ["outside"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_tree_copy_leaves_no_temporary_files() {
    let server = Server::unix(&[]);
    let (fs, place) = (connect(server.address()).await, Place::in_memory());
    for number in 0..50 {
        place.write(&format!("tree/{number}"), "content");
    }
    place.write("tree/large", content(4 * MIB));
    place.make(&["up", "down"]);
    for step in 0..40 {
        let limit = Duration::from_micros(step * 250);
        let up = fs.upload_tree(place.path("tree"), place.path("up")).skip_unchanged(SkipUnchanged::Never);
        let _ = timeout(limit, up.run()).await;
        let down =
            fs.download_tree(place.path("tree"), place.path("down")).skip_unchanged(SkipUnchanged::Never);
        let _ = timeout(limit, down.run()).await;
    }
    let is_clean = |to: &str| place.names(to).iter().all(|name| !name.starts_with('.'));
    let cleaned = async {
        while !is_clean("up") || !is_clean("down") {
            // A round trip, so that the server can remove what it was asked to.
            fs.exists(place.path("up")).await.unwrap();
        }
    };
    timeout(PATIENCE, cleaned).await.expect("the temporary files are removed");
}

/// What is below a directory: for each name its kind, permissions, time, and content or target.
fn picture(root: &Path) -> BTreeMap<Vec<u8>, (char, u32, u128, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in local::read_dir(directory).unwrap().map(Result::unwrap) {
            let (path, metadata) = (entry.path(), entry.metadata().unwrap());
            let mode = metadata.permissions().mode() & 0o7777;
            let time = metadata.modified().unwrap().duration_since(UNIX_EPOCH).unwrap().as_millis();
            let what = if metadata.is_dir() {
                directories.push(path.clone());
                ('d', mode, time, Vec::new())
            } else if metadata.is_symlink() {
                ('l', 0, 0, local::read_link(&path).unwrap().as_os_str().as_bytes().to_vec())
            } else {
                ('f', mode, time, local::read(&path).unwrap())
            };
            let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
            found.insert(name, what);
        }
    }
    found
}

/// Makes a tree with everything that a tree can have.
fn plant(place: &Place) {
    place.make(&["tree/empty", "tree/deep/er/still"]);
    for number in 0..40 {
        place.write(&format!("tree/small/{number}"), format!("{number}"));
    }
    place.write("tree/large", content(3 * MIB));
    place.write("tree/edge", content((256 << 10) + 1));
    place.write("tree/nothing", "");
    place.write("tree/a\nb c%", "odd");
    place.write("tree/deep/er/script", "#!/bin/sh\n");
    place.link("../large", "tree/deep/link");
    place.link("/nowhere/at all", "tree/dangling");
    place.link("deep", "tree/to-directory");
    place.write("tree/sealed/inside", "kept");
    let tree = place.path("tree");
    local::write(tree.join(OsStr::from_bytes(b"\xff\xfe")), "not a text").unwrap();
    symlink(OsStr::from_bytes(b"\xf0\xf1"), tree.join("to-no-text")).unwrap();
    for (name, mode) in [("tree/deep/er/script", 0o755), ("tree/nothing", 0o400), ("tree/sealed", 0o555)] {
        local::set_permissions(place.path(name), local::Permissions::from_mode(mode)).unwrap();
    }
    set_time(&place.path("tree/deep/er/script"), 86_400_123);
    set_time(&place.path("tree/deep"), 1_000);
}

/// The regular files and the links of the planted tree.
const PLANTED: (u64, u64) = (47, 4);

fn set_time(path: &Path, ms: u64) {
    let time = UNIX_EPOCH + Duration::from_millis(ms);
    local::File::open(path).unwrap().set_modified(time).unwrap();
}

fn paths(report: &TreeReport) -> Vec<&Path> {
    let mut paths: Vec<_> = report.failures.iter().map(|failure| failure.path.as_path()).collect();
    paths.sort();
    paths
}

/// What was copied, left alone, excluded and failed.
fn counts(report: &TreeReport) -> (u64, u64, u64, usize) {
    (report.files + report.links, report.unchanged, report.excluded, report.failures.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_round_trips_unchanged() {
    for server in servers() {
        let (fs, place) = (connect(server.address()).await, Place::new());
        plant(&place);
        let planted = picture(&place.path("tree"));
        place.fifo("tree/pipe");
        let bytes = planted.values().filter(|(kind, ..)| *kind == 'f').map(|(.., it)| it.len() as u64).sum();
        let expected = |report: &TreeReport| {
            assert_eq!((report.files, report.links), PLANTED);
            assert_eq!((report.directories, report.special, report.bytes), (6, 1, bytes), "{report:?}");
            assert_eq!(counts(report), (51, 0, 0, 0));
        };
        let mut last = Progress::default();
        let note = |progress: &Progress| {
            assert!(progress.bytes >= last.bytes && progress.files >= last.files, "progress only grows");
            last = progress.clone();
        };
        let copy = fs.upload_tree(place.path("tree"), place.path("up/there"));
        expected(&copy.progress(note).await.unwrap());
        assert_eq!((last.files, last.bytes), (PLANTED.0, bytes));
        assert_eq!((last.total_files, last.total_bytes), (Some(PLANTED.0), Some(bytes)));
        assert!(picture(&place.path("up/there")) == planted, "what is there is what was here");

        let copy = fs.download_tree(place.path("tree"), place.path("down/here"));
        expected(&copy.progress(|progress| last = progress.clone()).await.unwrap());
        assert_eq!((last.files, last.bytes), (PLANTED.0, bytes));
        assert_eq!((last.total_files, last.total_bytes), (Some(PLANTED.0), Some(bytes)));
        assert!(picture(&place.path("down/here")) == planted, "what came is what was there");

        // Once more, over what is there.
        for skip in [SkipUnchanged::BySizeAndTime, SkipUnchanged::ByContent, SkipUnchanged::Never] {
            let up = fs.upload_tree(place.path("tree"), place.path("up/there")).skip_unchanged(skip);
            let down = fs.download_tree(place.path("tree"), place.path("down/here")).skip_unchanged(skip);
            for report in [up.await.unwrap(), down.await.unwrap()] {
                let files = if skip == SkipUnchanged::Never { PLANTED.0 } else { 0 };
                assert_eq!(
                    (report.files, report.links, report.unchanged),
                    (files, 0, 51 - files),
                    "{skip:?}"
                );
                assert!(report.is_complete(), "{:?}", report.failures);
            }
            assert!(picture(&place.path("up/there")) == planted, "{skip:?}");
            assert!(picture(&place.path("down/here")) == planted, "{skip:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_changed_files_are_copied_again() {
    let server = Server::unix(&[]);
    let (fs, place) = (connect(server.address()).await, Place::new());
    for name in ["same", "longer", "touched", "disguised", "mode"] {
        set_time(&place.write(&format!("tree/{name}"), name), 5_000);
    }
    for to in ["up", "down"] {
        let copy = |skip| match to {
            "up" => fs.upload_tree(place.path("tree"), place.path(to)).skip_unchanged(skip).run(),
            _ => fs.download_tree(place.path("tree"), place.path(to)).skip_unchanged(skip).run(),
        };
        assert_eq!(counts(&copy(SkipUnchanged::BySizeAndTime).await.unwrap()), (5, 0, 0, 0));
        set_time(&place.write("tree/longer", format!("longer than {to}")), 5_000);
        set_time(&place.path("tree/touched"), 6_000 + to.len() as u64);
        set_time(&place.write("tree/disguised", if to == "up" { "DISGUISED" } else { "Disguised" }), 5_000);
        let mode = if to == "up" { 0o640 } else { 0o604 };
        local::set_permissions(place.path("tree/mode"), local::Permissions::from_mode(mode)).unwrap();

        // The content of a touched file is the same, and only its time is updated.
        assert_eq!(counts(&copy(SkipUnchanged::ByContent).await.unwrap()), (2, 3, 0, 0));
        assert!(picture(&place.path(to)) == picture(&place.path("tree")), "{to}");

        set_time(&place.path("tree/touched"), 7_000 + to.len() as u64);
        set_time(&place.write("tree/disguised", "the same?"), 5_000);
        assert_eq!(counts(&copy(SkipUnchanged::BySizeAndTime).await.unwrap()), (1, 4, 0, 0));
        assert_ne!(
            place.read(&format!("{to}/disguised")),
            "the same?",
            "size and time are all that is compared"
        );
        local::remove_dir_all(place.path(to)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gitignore_rules_apply_equally_to_uploads_and_downloads() {
    let server = Server::unix(&[]);
    let (fs, place) = (connect(server.address()).await, Place::new());
    place.write("tree/.gitignore", "*.o\n/target/\n!keep.o\n");
    place.write("tree/nested/.gitignore", "!*.o\nsecret\n");
    place.write("tree/linked/rules", "*\n");
    place.link("rules", "tree/linked/.gitignore");
    for name in ["a.o", "keep.o", "main.c", "target/a", "nested/a.o", "nested/secret", "nested/b/secret"] {
        place.write(&format!("tree/{name}"), name);
    }
    for name in ["nested/target/x", "linked/a", ".git/HEAD", "build.log", "nested/b/build.log"] {
        place.write(&format!("tree/{name}"), name);
    }
    let mut note = None;
    // The root is reached through a link, which must not hide its rules.
    place.link("tree", "alias");
    let names = |to: &str| {
        let names = picture(&place.path(to)).into_iter().filter(|(_, what)| what.0 != 'd');
        names.map(|(name, _)| String::from_utf8(name).unwrap()).collect::<Vec<_>>()
    };
    let expected = [
        ".gitignore",
        "keep.o",
        "linked/.gitignore",
        "linked/a",
        "linked/rules",
        "main.c",
        "nested/.gitignore",
        "nested/a.o",
        "nested/target/x",
    ];
    let rest = |to: &str| match to {
        "up" => fs.upload_tree(place.path("alias"), place.path(to)),
        _ => fs.download_tree(place.path("alias"), place.path(to)),
    };
    for to in ["up", "down"] {
        let copy = rest(to).use_gitignore_files().exclude("*.log").exclude(".git/");
        let report = copy.progress(|progress| note = Some(progress.clone())).await.unwrap();
        assert_eq!(names(to), expected, "{to}");
        assert_eq!(counts(&report), (9, 0, 7, 0), "{to}: {report:?}");
        assert_eq!(note.take().unwrap().total_files, Some(8), "{to}");
        // Without the files they are only content.
        let all = rest(&format!("{to}-all")).exclude("/nested");
        assert_eq!(all.await.unwrap().excluded, 1);
        assert!(place.path(&format!("{to}-all/target/a")).exists());
        let some = rest(&format!("{to}-some")).filter(|entry| entry.path != Path::new("nested/b"));
        assert_eq!(some.await.unwrap().excluded, 1);
        let refused = rest(&format!("{to}-none")).exclude("[z-a]").await.unwrap_err();
        assert!(matches!(refused, Error::Usage { .. }), "{refused}");
        assert!(!place.path(&format!("{to}-none")).exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_continues_after_failures_and_reports_them_all() {
    let server = Server::unix(&[]);
    let (fs, place) = (connect(server.address()).await, Place::new());
    for number in 0..30 {
        place.write(&format!("tree/{number:02}/file"), "content");
    }
    for to in ["up", "down"] {
        // A directory where a file should be, a file and a link where directories should be.
        place.make(&[&format!("{to}/03/file/occupied"), "outside"]);
        place.write(&format!("{to}/07"), "a file");
        place.link("../outside", &format!("{to}/11"));
        let copy = || match to {
            "up" => fs.upload_tree(place.path("tree"), place.path(to)),
            _ => fs.download_tree(place.path("tree"), place.path(to)),
        };
        let report = copy().await.unwrap();
        assert_eq!(paths(&report), ["03/file", "07", "11"].map(Path::new), "{report:?}");
        assert_eq!(counts(&report), (27, 0, 0, 3), "{report:?}");
        assert_eq!(place.read(&format!("{to}/29/file")), "content");
        assert_eq!((place.names("outside"), place.read(&format!("{to}/07"))), (vec![], "a file".to_owned()));
        for failure in &report.failures {
            let text = failure.to_string();
            assert!(text.starts_with(&format!("cannot copy `{}`: ", failure.path.display())), "{text}");
            assert!(!text.contains(".remex-"), "{text}");
        }
        assert!(copy().stop_at_first_failure().await.is_err());
    }
    let missing = fs.upload_tree(place.path("nothing"), place.path("new")).await.unwrap_err();
    assert!(matches!(missing, Error::Local { .. }), "{missing}");
    let missing = fs.download_tree(place.path("nothing"), place.path("new")).await.unwrap_err();
    assert_eq!(missing.kind(), Some(ErrorKind::NotFound));
    let file = fs.upload_tree(place.path("tree"), place.path("up/07")).await.unwrap_err();
    assert!(matches!(&file, Error::Usage { message, .. } if message.contains("not a directory")), "{file}");
    assert!(!place.path("new").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_during_the_copy_is_reported() {
    let server = Server::unix(&[]);
    let (fs, place) = (connect(server.address()).await, Place::new());
    let large = place.write("tree/large", content(16 * MIB));
    place.write("tree/small", "content");
    for to in ["up", "down"] {
        let has_changed = AtomicBool::new(false);
        let change = |progress: &Progress| {
            if progress.bytes > MIB as u64 && !has_changed.swap(true, Relaxed) {
                let mut file = local::File::options().append(true).open(&large).unwrap();
                std::io::Write::write_all(&mut file, b"more").unwrap();
            }
        };
        let copy = || match to {
            "up" => fs.upload_tree(place.path("tree"), place.path(to)),
            _ => fs.download_tree(place.path("tree"), place.path(to)),
        };
        let report = copy().progress(change).await.unwrap();
        assert_eq!(paths(&report), [Path::new("large")]);
        let error = &report.failures[0].error;
        assert_eq!(*error, Error::Changed { path: large.display().to_string() });
        assert_eq!(place.names(to), ["small"], "neither a torn file nor a temporary one");
        assert_eq!(counts(&copy().await.unwrap()), (1, 1, 0, 0));
        assert!(picture(&place.path(to)) == picture(&place.path("tree")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_files_and_deep_directories_are_copied() {
    const FILES: u64 = 10_000;
    const DEPTH: usize = 500;
    let server = Server::unix(&[]);
    let (fs, place) = (connect(server.address()).await, Place::in_memory());
    for number in 0..FILES {
        place.write(&format!("many/{}/{number}", number % 7), number.to_string());
    }
    let deep: PathBuf = std::iter::repeat_n("d", DEPTH).collect();
    place.write(&format!("deep/{}/file", deep.display()), "content");
    let (many, deep) = (place.path("many"), place.path("deep"));
    for (from, files) in [(&many, FILES), (&deep, 1)] {
        for expected in [(files, 0), (0, files)] {
            let up = fs.upload_tree(from, place.path("up")).await.unwrap();
            let down = fs.download_tree(from, place.path("down")).await.unwrap();
            for report in [up, down] {
                assert_eq!((report.files, report.unchanged), expected, "{:?}", report.failures);
                assert!(report.is_complete(), "{:?}", report.failures);
            }
        }
        let source = picture(from);
        for to in ["up", "down"] {
            assert!(picture(&place.path(to)) == source, "{to}");
            local::remove_dir_all(place.path(to)).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tree_copies_survive_disconnects() {
    let server = Server::unix(&[]);
    let plan: Vec<u64> = (1..9).map(|number| number * 77_777).collect();
    let proxy = DisconnectingProxy::start(server.address(), &plan);
    let (fs, place) = (connect(proxy.address()).await, Place::new());
    plant(&place);
    let up = fs.upload_tree(place.path("tree"), place.path("up")).await.unwrap();
    let down = fs.download_tree(place.path("tree"), place.path("down")).await.unwrap();
    assert_eq!((up.failures, down.failures), (vec![], vec![]));
    let planted = picture(&place.path("tree"));
    for to in ["up", "down"] {
        let copied = picture(&place.path(to));
        let differing: Vec<_> =
            copied.iter().zip(&planted).filter(|(copy, original)| copy != original).collect();
        let names: Vec<_> = differing.iter().map(|pair| format!("{pair:.300?}")).collect();
        assert!(copied == planted, "{to}: {names:?}");
    }
    assert_eq!(proxy.disconnects_left(), 0, "the transfers met every cut");
}
