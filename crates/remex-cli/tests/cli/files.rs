//! Files here and elsewhere: `cp`, `mv`, `mkdir`, `rm`, `ls`, `cat`, `edit` and `watch`.

mod copies;
mod edits;
mod excluded;
mod interrupted_copies;
mod ls_cat_watch;
mod moves_and_removals;
mod names;
mod repeats;
mod selected;
mod synced;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::Path,
    process::Stdio,
    sync::Arc,
};

use crate::{
    home::{Home, Said},
    support::{DisconnectingProxy, Server},
};

/// A user here, and another whose server is the environment `build`.
pub(crate) struct World {
    pub(crate) here: Home,
    pub(crate) there: Arc<Home>,
    pub(crate) server: Server,
}

impl World {
    pub(crate) fn new() -> Self {
        let world = Self::without_environment();
        world.here.add_environment("build", world.server.address());
        world
    }

    /// Makes one where `build` is behind a proxy.
    pub(crate) fn behind(make_proxy: impl FnOnce(&str) -> DisconnectingProxy) -> (Self, DisconnectingProxy) {
        let world = Self::without_environment();
        let proxy = make_proxy(world.server.address());
        world.here.add_environment("build", proxy.address());
        (world, proxy)
    }

    fn without_environment() -> Self {
        let there = Arc::new(Home::new());
        Self { here: Home::new(), server: serve(&there), there }
    }

    pub(crate) fn say(&self, args: &[&str]) -> Said {
        self.here.say(args)
    }

    /// Runs a command that has nothing to say.
    pub(crate) fn quietly(&self, args: &[&str]) {
        assert_eq!(self.say(args), said(0, "", ""));
    }
}

/// Serves a user's files.
pub(crate) fn serve(home: &Home) -> Server {
    let mut command = home.remex(&["serve"]);
    command.stdin(Stdio::null());
    Server::launch(command, 1)
}

pub(crate) fn said(code: i32, out: &str, err: &str) -> Said {
    Said { code: Some(code), out: out.to_owned(), err: err.to_owned() }
}

/// Makes a file of any size in no time: a hole with a number at the beginning of every mebibyte.
fn sparse(path: &Path, mebibytes: u64) {
    let mut file = File::create(path).unwrap();
    for number in 0..mebibytes {
        file.seek(SeekFrom::Start(number << 20)).unwrap();
        file.write_all(&(number + 1).to_le_bytes()).unwrap();
    }
    file.set_len((mebibytes << 20) - 1).unwrap();
}

/// Compares two files byte by byte.
fn assert_same_content(one: &Path, other: &Path) {
    let (mut one, mut other) = (File::open(one).unwrap(), File::open(other).unwrap());
    assert_eq!(one.metadata().unwrap().len(), other.metadata().unwrap().len());
    let (mut block, mut counterpart) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for number in 0.. {
        let len = one.read(&mut block).unwrap();
        if len == 0 {
            return;
        }
        other.read_exact(&mut counterpart[..len]).unwrap();
        assert!(block[..len] == counterpart[..len], "block {number} differs");
    }
}

/// What a tree is: names, kinds, permissions, times and contents.
fn tree(root: &Path) -> BTreeMap<Vec<u8>, (u32, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            let is_link = metadata.is_symlink();
            let content = match () {
                () if metadata.is_dir() => {
                    directories.push(path.clone());
                    Vec::new()
                }
                () if is_link => fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec(),
                () => fs::read(&path).unwrap(),
            };
            // Links have times of their own, which cannot be set on every system.
            let modified =
                if is_link { 0 } else { metadata.mtime() * 1000 + metadata.mtime_nsec() / 1_000_000 };
            let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
            found.insert(name, (metadata.mode(), modified, content));
        }
    }
    found
}
