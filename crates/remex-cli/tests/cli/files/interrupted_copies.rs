//! Copies that a lost connection, a killed process or a stopped server interrupts.

use std::{
    env,
    fs::{self, OpenOptions, Permissions},
    io::Write as _,
    os::unix::{fs::PermissionsExt as _, process::ExitStatusExt as _},
    process::Stdio,
    sync::{Arc, OnceLock, mpsc},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{World, assert_same_content, said, serve, sparse, tree};
use crate::{
    home::Home,
    screen::Screen,
    support::{DisconnectingProxy, InTime as _, PATIENCE, Server, Watched},
};

const MEBIBYTE: u64 = 1 << 20;

/// Two gibibytes with `scripts/soak`.
#[test]
fn a_large_file_arrives_byte_exactly_despite_five_disconnects() {
    let size = env::var("REMEX_COPY_MEBIBYTES").map_or(256, |size| size.parse().expect("a number"));
    let disconnects = [13, 60, 1, 110, 40].map(|mebibytes| mebibytes * MEBIBYTE * size / 256);
    let (world, proxy) = World::behind(|address| DisconnectingProxy::start(address, &disconnects));
    sparse(&world.here.path("image"), size);
    let mut copy = world.here.remex(&["cp", "image", "build:"]).stdin(Stdio::null()).spawn().unwrap();
    let watched = Watched::new(Pid::from_child(&copy));
    let mut carried = 0;
    // A busy machine takes its time, but something always moves.
    while !watched.ended_within(PATIENCE) {
        let before = std::mem::replace(&mut carried, proxy.carried());
        assert!(carried > before, "nothing moved for {PATIENCE:?} after {carried} bytes");
    }
    assert!(copy.wait().unwrap().success());
    assert_eq!(proxy.disconnects_left(), 0);
    assert_same_content(&world.here.path("image"), &world.there.path("image"));
    assert!(!world.there.path(".image.remex-part").exists());
}

#[test]
fn twenty_thousand_files_arrive_despite_five_disconnects() {
    let (world, proxy) = World::behind(|address| {
        DisconnectingProxy::start(address, &[300_000, 1_000_000, 50_000, 2_000_000, 700_000])
    });
    for directory in 0..100 {
        let directory = world.here.path(&format!("many/{directory}"));
        fs::create_dir_all(&directory).unwrap();
        for number in 0..200 {
            fs::write(directory.join(number.to_string()), format!("{} {number}\n", directory.display()))
                .unwrap();
        }
    }
    world.quietly(&["cp", "many", "build:"]);
    assert_eq!(proxy.disconnects_left(), 0);
    assert!(tree(&world.there.path("many")) == tree(&world.here.path("many")), "the copy differs");
    // Nothing of it travels again.
    let carried = proxy.carried();
    let again = world.say(&["cp", "-v", "many", "build:"]);
    assert!(again.err.contains("0 files copied, 0B in "), "{}", again.err);
    assert!(again.err.contains("; 20000 files skipped "), "{}", again.err);
    assert!(proxy.carried() - carried < 8 * MEBIBYTE);
}

#[test]
fn a_killed_copy_is_continued_where_it_stopped() {
    let victim = Arc::new(OnceLock::new());
    let killed = Arc::clone(&victim);
    let (world, proxy) = World::behind(|address| {
        DisconnectingProxy::with_notice(address, &[48 * MEBIBYTE], move || {
            let _ = kill_process(*killed.wait(), Signal::KILL);
        })
    });
    sparse(&world.here.path("image"), 64);
    let mut child = world.here.remex(&["cp", "image", "build:"]).spawn().unwrap();
    victim.set(Pid::from_child(&child)).unwrap();
    assert_eq!(child.ended().signal(), Some(9));
    let part = world.there.path(".image.remex-part").metadata().unwrap();
    assert!(part.len() > 30 * MEBIBYTE, "{part:?}");
    assert_eq!(part.permissions().mode() & 0o777, 0o600);
    let carried = proxy.carried();
    world.quietly(&["cp", "image", "build:"]);
    // 64 MiB are 86 on the wire.
    assert!(proxy.carried() - carried < 48 * MEBIBYTE, "{}", proxy.carried() - carried);
    assert_same_content(&world.here.path("image"), &world.there.path("image"));
    assert_eq!(tree(&world.there.path(".")).len(), 1);
}

#[test]
fn an_interrupted_tree_copy_is_continued() {
    let victim = Arc::new(OnceLock::new());
    let killed = Arc::clone(&victim);
    let (world, _proxy) = World::behind(|address| {
        DisconnectingProxy::with_notice(address, &[4 * MEBIBYTE], move || {
            let _ = kill_process(*killed.wait(), Signal::KILL);
        })
    });
    let site = world.here.path("site");
    fs::create_dir_all(site.join("closed")).unwrap();
    fs::write(site.join("closed/key"), "secret").unwrap();
    fs::set_permissions(site.join("closed"), Permissions::from_mode(0o500)).unwrap();
    sparse(&site.join("image"), 16);
    let mut child = world.here.remex(&["cp", "site", "build:site-copy"]).spawn().unwrap();
    victim.set(Pid::from_child(&child)).unwrap();
    assert_eq!(child.ended().signal(), Some(9));
    assert!(world.there.path("site-copy").is_dir() && !world.there.path("site-copy/image").exists());
    world.quietly(&["cp", "site", "build:site-copy"]);
    assert!(tree(&world.there.path("site-copy")) == tree(&site), "the copy differs");
    // It is complete now, so the next one goes into it.
    world.quietly(&["cp", "site", "build:site-copy"]);
    assert!(tree(&world.there.path("site-copy/site")) == tree(&site), "the copy differs");
}

#[test]
fn a_partial_copy_of_another_file_is_discarded() {
    let world = World::new();
    sparse(&world.here.path("image"), 2);
    let (part, image) = (world.there.path(".image.remex-part"), world.there.path("image"));
    let private = |content: &[u8]| {
        fs::write(&part, content).unwrap();
        fs::set_permissions(&part, Permissions::from_mode(0o600)).unwrap();
    };
    private(&[9; 1 << 20]);
    world.quietly(&["cp", "image", "build:"]);
    assert_same_content(&world.here.path("image"), &image);
    assert_eq!(tree(&world.there.path(".")).len(), 1);

    // What others can read, or know by another name, is none, and neither written to nor removed.
    let begin = fs::read(&image).unwrap()[..1 << 20].to_vec();
    let other = world.there.path("other");
    for is_shared in [true, false] {
        private(&begin);
        match is_shared {
            true => fs::hard_link(&part, &other).unwrap(),
            false => fs::set_permissions(&part, Permissions::from_mode(0o644)).unwrap(),
        }
        fs::remove_file(&image).unwrap();
        world.quietly(&["cp", "image", "build:"]);
        assert_same_content(&world.here.path("image"), &image);
        assert!(fs::read(&part).unwrap() == begin, "the part was written to");
        let _ = fs::remove_file(&other);
        fs::remove_file(&part).unwrap();
    }

    // Nor is anything written through a link created there.
    fs::write(&other, "mine").unwrap();
    fs::remove_file(&image).unwrap();
    std::os::unix::fs::symlink("other", &part).unwrap();
    world.quietly(&["cp", "image", "build:"]);
    assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
    assert_same_content(&world.here.path("image"), &image);
}

#[test]
fn concurrent_copies_to_one_name_leave_one_complete_file() {
    let world = World::new();
    for (name, content) in [("one", 1), ("two", 2)] {
        fs::write(world.here.path(name), vec![content; 24 << 20]).unwrap();
    }
    let copy = |name| world.here.remex(&["cp", name, "build:image"]).spawn().unwrap();
    for mut child in ["one", "two", "one"].map(copy) {
        assert_eq!(child.ended().code(), Some(0));
    }
    let content = fs::read(world.there.path("image")).unwrap();
    assert!(content == vec![content[0]; 24 << 20], "two copies are mixed");
    assert_eq!(tree(&world.there.path(".")).len(), 1);
}

#[test]
fn a_source_that_changes_during_the_copy_leaves_the_destination_unchanged() {
    let here = Arc::new(Home::new());
    let (there, changed) = (Home::new(), here.path("image"));
    let server = serve(&there);
    let proxy = DisconnectingProxy::with_notice(server.address(), &[8 * MEBIBYTE], move || {
        OpenOptions::new().append(true).open(&changed).unwrap().write_all(b"more").unwrap();
    });
    here.add_environment("build", proxy.address());
    sparse(&here.path("image"), 16);
    fs::write(there.path("image"), "old").unwrap();
    let path = here.path("image").display().to_string();
    let failed = here.say(&["cp", "image", "build:"]);
    let expected = format!(
        "remex: cannot copy `image`: `{path}` changed during the transfer\n  \
         hint: try again when nothing writes to it\n"
    );
    assert_eq!((failed.code, failed.out.as_str()), (Some(1), ""));
    // On a busy machine, it takes long enough to reconnect that this is said before.
    let before = failed.err.strip_suffix(&expected).unwrap_or_else(|| panic!("{failed:?}"));
    let lost = "remex: connection to build lost; reconnecting\nremex: reconnected to build after ";
    assert!(before.is_empty() || before.starts_with(lost) && before.lines().count() == 2, "{failed:?}");
    assert_eq!(fs::read_to_string(there.path("image")).unwrap(), "old");
    assert_eq!(tree(&there.path(".")).len(), 1);
}

#[test]
fn a_copy_is_continued_after_its_server_was_lost() {
    let there = Home::new();
    let address = format!("unix://{}", there.path("socket").display());
    let server = Server::serve(&["--listen", &address]);
    let (cut, was_cut) = mpsc::channel();
    let pid = Pid::from_raw(i32::try_from(server.pid()).unwrap()).unwrap();
    let proxy = DisconnectingProxy::with_notice(&address, &[24 * MEBIBYTE], move || {
        let _ = kill_process(pid, Signal::KILL);
        let _ = cut.send(());
    });
    let here = Home::new();
    here.add_environment("build", proxy.address());
    sparse(&here.path("image"), 32);
    let to = format!("build:{}", there.path("image").display());
    let child = here.remex(&["cp", "image", &to]).stderr(Stdio::piped()).spawn().unwrap();
    was_cut.recv_timeout(PATIENCE).expect("the connection is cut");
    drop(server);
    let _another = Server::serve(&["--listen", &address]);
    let output = child.finished();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{err}");
    assert!(err.ends_with("\n  hint: repeat the command to resume once the host is reachable\n"), "{err}");
    let carried = proxy.carried();
    assert_eq!(here.say(&["cp", "image", &to]), said(0, "", ""));
    assert!(proxy.carried() - carried < 32 * MEBIBYTE, "{}", proxy.carried() - carried);
    assert_same_content(&here.path("image"), &there.path("image"));
}

#[test]
fn a_long_disconnect_is_reported_once_and_ctrl_c_exits_cleanly() {
    // Connections that carry nothing keep the client trying for more than a second.
    let plan = [&[16 * MEBIBYTE][..], &[0; 200]].concat();
    let (world, proxy) = World::behind(|address| DisconnectingProxy::start(address, &plan));
    sparse(&world.here.path("image"), 32);
    let mut screen = Screen::remex(&world.here, &["cp", "image", "build:"]);
    screen.wait_for("remex: connection to build lost; reconnecting\n");
    screen.keys("\u{3}");
    let shown = screen.wait_for("remex: interrupted; repeat the command to resume");
    assert_eq!(screen.end(), Some(130));
    assert!(!shown.contains('%'), "{shown}");
    assert!(proxy.disconnects_left() > 0);

    // Now there is a way.
    world.here.add_environment("again", world.server.address());
    let copied = world.say(&["cp", "-v", "image", "again:"]);
    assert_eq!(copied.out, "copy image -> again:image\n");
    // Nearly 16 MiB have arrived, and those are not copied again.
    let copied_mebibytes =
        copied.err.strip_prefix("remex: 1 file copied, ").and_then(|rest| rest.split_once("MiB"));
    let copied_mebibytes: f64 = copied_mebibytes.expect("the size is reported").0.parse().unwrap();
    assert!((16.0..24.0).contains(&copied_mebibytes), "{copied:?}");
    assert_same_content(&world.here.path("image"), &world.there.path("image"));
}
