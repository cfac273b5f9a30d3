//! Help texts and errors, word for word, in `tests/cli/snapshots`.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test -p remex-cli --test cli snapshots` writes them anew; look at the difference before you
//! commit it.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

use crate::{
    commands::{Commands, USUAL, help},
    home::Home,
};

/// What people get wrong, in a home where only the environment `gone` has a name, and nobody answers there.
const ERRORS: &[&[&str]] = &[
    &["frobnicate"],
    &["run"],
    &["run", "--on", "nowhere", "true"],
    &["run", "--on", "gone", "true"],
    &["run", "--on", "ftp://host", "true"],
    &["run", "--timeout", "5", "true"],
    &["run", "no-such-program"],
    &["run", "no-such-program with arguments"],
    &["run", "--on", "user@far.example", "true"],
    &["run", "--on", "127.0.0.1:7070", "true"],
    &["run", "--on", "ws:/far", "true"],
    &["run", "--on", "ssh:far", "true"],
    &["run", "--here", "--on", "gone", "true"],
    &["run", ""],
    &["run", "/dev/null"],
    &["ps", "--on", "gone"],
    &["ps", "--on", "gone", "--token-file", "no-such-file"],
    &["logs", "build"],
    &["attach", "build"],
    &["kill", "build"],
    &["kill", "build", "--signal", "NONSENSE"],
    &["wait", "build"],
    &["resize", "build", "huge"],
    &["top"],
    &["cp", "notes.txt"],
    &["cp"],
    &["cp", "no-such-file", "copy.txt"],
    &["cp", "nowhere:notes.txt", "copy.txt"],
    &["ls", "no-such-directory"],
    &["ls", "gone:"],
    &["cat", "no-such-file"],
    &["cat", "."],
    &["mv", "notes.txt"],
    &["mkdir"],
    &["mkdir", "no-such-directory/new"],
    &["rm", "-r", "build"],
    &["rm", "gone:"],
    &["http"],
    &["http", "localhost:8080/health"],
    &["edit"],
    &["watch", "no-such-directory"],
    &["env"],
    &["env", "add", "dev"],
    &["env", "add", "dev", "ssh", "far.example", "remex", "proxy"],
    &["env", "add", "a b", "ws://127.0.0.1:7070"],
    &["env", "add", "dev", "http://127.0.0.1:7070"],
    &["env", "add", "gone", "ws://127.0.0.1:7070"],
    &["env", "add", "dev", "ssh://far:ssh"],
    &["env", "add", "dev", "ws:/far"],
    &["env", "add", "dev", "ws://me@far"],
    &["env", "add", "dev", "ws://:7070"],
    &["env", "add", "dev", "ws://127.0.0.1:7070", "--install"],
    &["env", "set", "gone"],
    &["env", "set", "dev", "--default"],
    &["env", "remove", "dev"],
    &["env", "test"],
    &["env", "test", "nowhere"],
    &["doctor", "--on", "nowhere"],
    &["serve", "--listen", "nonsense"],
    &["serve", "--listen", "ws://0.0.0.0:0"],
    &["serve", "--listen", "wss://127.0.0.1:0"],
    &["serve", "--listen", "wss://0.0.0.0:0"],
    &["cert", "new", "server", "a b"],
    &["serve", "--listen", "systemd"],
    &["serve", "--listen", "unix:///no-such-directory/remex.sock"],
    &["serve", "--concurrent-requests", "0"],
    &["serve", "--ws-auth", "capability-token", "--ws-token-file", "no-such-file"],
    &["ps", "--on", LONG],
    &["env", "add", "lab", "ws://127.0.0.1:7070", "--token-file", "no-such-file"],
    &["serve", "--ws-token-file", "token.txt"],
    &["serve", "--ws-auth", "signed-bearer-token"],
    &["serve", "--ws-issuer", "us"],
    &["serve", "--max-detach-ttl", "long"],
    &["token", "new", "--scope", "fly"],
    &["token", "new", "--subject", "ann"],
    &["token", "new", "--secret-file", "no-such-file", "--expires", "1h"],
    &["token", "show", "nonsense"],
    &["completions", "tcsh"],
    &["man", "--dir", "/dev/null/pages"],
];

/// An address with a path that is too long for a socket.
const LONG: &str = "unix:///an/address/whose/path/is/too/long/for/a/socket/because/the/kernel/takes/no/more/than/107/bytes/of/one/and/this/has/more";

#[test]
fn help_is_as_written_down() {
    let home = Home::new();
    let mut found = BTreeMap::new();
    found.insert("help.txt".to_owned(), help(&home, &[], USUAL));
    for words in &Commands::of(&home).all {
        found.insert(format!("help-{}.txt", words.join("-")), help(&home, words, USUAL));
    }
    compare("help", &home, found);
}

#[test]
fn errors_are_as_written_down() {
    let home = Home::new();
    home.add_environment("gone", "ws://127.0.0.1:1");
    let mut text = String::new();
    for arguments in ERRORS {
        let said = home.say(arguments);
        text.push_str(&format!("$ remex {}\n", arguments.join(" ")));
        text.push_str(&said.out);
        text.push_str(&said.err);
        text.push_str(&format!("exit code {}\n\n", said.code.unwrap()));
    }
    compare("errors", &home, BTreeMap::from([("errors.txt".to_owned(), text)]));
}

/// Compares texts with the files of that kind, and both ways: a file without a text is stale.
fn compare(kind: &str, home: &Home, found: BTreeMap<String, String>) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/snapshots");
    let found: BTreeMap<_, _> = found.into_iter().map(|(name, text)| (name, general(home, &text))).collect();
    let stale: Vec<_> =
        files(&directory, kind).into_iter().filter(|name| !found.contains_key(name)).collect();
    if env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::create_dir_all(&directory).unwrap();
        stale.iter().for_each(|name| fs::remove_file(directory.join(name)).unwrap());
        found.iter().for_each(|(name, text)| fs::write(directory.join(name), text).unwrap());
        return;
    }
    let advice =
        "run `UPDATE_SNAPSHOTS=1 cargo test -p remex-cli --test cli snapshots`, and look at the difference";
    assert!(stale.is_empty(), "there is nothing any more for {stale:?}; {advice}");
    for (name, text) in &found {
        let expected = fs::read_to_string(directory.join(name)).unwrap_or_default();
        assert!(
            expected == *text,
            "{name} is not what is printed now; {advice}\n--- expected\n{expected}\n--- found\n{text}"
        );
    }
}

fn files(directory: &Path, kind: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(kind)).collect()
}

/// Replaces what differs from version to version and from run to run.
fn general(home: &Home, text: &str) -> String {
    let root: PathBuf = home.path("..");
    let root = fs::canonicalize(root).unwrap().display().to_string();
    text.replace(&root, "USER").replace(env!("CARGO_PKG_VERSION"), "VERSION")
}
