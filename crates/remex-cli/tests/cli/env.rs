//! `remex env`: places with names, in a file that stays the user's own.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    os::unix::{fs::PermissionsExt as _, net::UnixListener},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};

use crate::{
    home::{self, Home, Said},
    support::{InTime as _, PATIENCE, Server},
};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn put(home: &Home, text: &str) {
    fs::write(home.environments(), text).unwrap();
    fs::set_permissions(home.environments(), fs::Permissions::from_mode(0o600)).unwrap();
}

fn listing(said: &Said) -> Value {
    let listing: Value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    assert_eq!(listing["version"], 1);
    listing
}

/// Returns the verdict of each check of the first environment.
fn verdicts(said: &Said) -> Vec<(String, String)> {
    let listing = listing(said);
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let checks = listing["environments"][0]["checks"].as_array().unwrap();
    checks.iter().map(|check| (word(&check["name"]), word(&check["verdict"]))).collect()
}

#[test]
fn an_environment_is_added_listed_and_removed() {
    let home = Home::new();
    fs::remove_dir_all(home.environments().parent().unwrap()).unwrap();
    let said =
        home.say(&["env", "add", "dev", "ws://127.0.0.1:7070", "--default", "--connect-timeout", "1500ms"]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), "added `dev`: ws://127.0.0.1:7070\n"), "{said:?}");
    assert_eq!(said.err, "remex: check it with `remex env test dev`\n");
    assert_eq!((mode(&home.environments()), mode(home.environments().parent().unwrap())), (0o600, 0o700));
    let said = home.say(&["env", "add", "far", "--", "./bin/way", "far.example", "--", "remex", "proxy"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(
        fs::read_to_string(home.environments()).unwrap(),
        format!(
            "default = \"dev\"\n\n[[environments]]\nid = \"dev\"\nurl = \"ws://127.0.0.1:7070\"\nconnect_timeout_sec = 1.5\n\n\
             [[environments]]\nid = \"far\"\nprogram = \"{}\"\nargs = [\"far.example\", \"--\", \"remex\", \"proxy\"]\n",
            home.path("bin/way").display()
        )
    );

    let file = home.environments().display().to_string();
    let said = home.say(&["env", "list"]);
    let rows: Vec<Vec<_>> = said.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "WHERE", "FROM"], "{said:?}");
    assert_eq!(rows[1], ["local", "this", "machine", "-"]);
    assert_eq!(rows[2], ["dev", "default", "ws://127.0.0.1:7070", &file]);
    assert_eq!(rows[3][0], "far");
    let listing = listing(&home.say(&["env", "list", "--json"]));
    let dev = json!({
        "id": "dev", "default": true, "kind": "webSocket", "where": "ws://127.0.0.1:7070", "token": false, "tls": null,
        "connectTimeoutMs": 1500, "reconnectTimeoutMs": null, "source": file,
    });
    assert_eq!(listing["environments"][1], dev);
    let way = format!("{} far.example -- remex proxy", home.path("bin/way").display());
    assert_eq!(listing["environments"][2]["where"], way, "a program is told without quotes around it");

    assert_eq!(home.say(&["env", "ls"]), home.say(&["env", "list"]));
    let said = home.say(&["env", "rm", "dev"]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), "removed `dev`\n"), "{said:?}");
    assert!(said.err.contains("`dev` was the default, which is now `local`"), "{said:?}");
    let text = fs::read_to_string(home.environments()).unwrap();
    assert!(text.starts_with("[[environments]]\nid = \"far\"\n"), "{text}");
}

#[test]
fn comments_order_and_permissions_survive_a_change() {
    let home = Home::new();
    let one = "# The one that never sleeps.\n[[environments]]\nid = \"one\" # first\nurl = 'ws://one:1'\n";
    let two = "\n[[environments]]\nid = \"two\"\nurl = \"ws://two:2\"\n";
    let before = format!("include_local = false\n# My machines\n\n{one}{two}# The end.\n");
    put(&home, &before);
    fs::set_permissions(home.environments(), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(home.say(&["env", "add", "three", "/run/three.sock"]).code, Some(0));
    let added = fs::read_to_string(home.environments()).unwrap();
    let three = "\n[[environments]]\nid = \"three\"\nurl = \"unix:///run/three.sock\"\n";
    assert_eq!(added, format!("include_local = false\n# My machines\n\n{one}{two}# The end.\n{three}"));
    assert_eq!(mode(&home.environments()), 0o644);
    assert_eq!(home.say(&["env", "remove", "three"]).code, Some(0));
    assert_eq!(fs::read_to_string(home.environments()).unwrap(), before);
    assert_eq!(home.say(&["env", "remove", "one"]).code, Some(0));
    assert_eq!(
        fs::read_to_string(home.environments()).unwrap(),
        format!("include_local = false\n# My machines\n{two}# The end.\n")
    );

    let lone = "[[environments]]\nid = \"a\"\nurl = \"ws://a:1\"\n";
    put(&home, &format!("# Mine.\n\n{lone}"));
    assert_eq!(home.say(&["env", "add", "b", "ws://b:2", "--default"]).code, Some(0));
    let text = fs::read_to_string(home.environments()).unwrap();
    let b = "\n[[environments]]\nid = \"b\"\nurl = \"ws://b:2\"\n";
    assert_eq!(text, format!("# Mine.\n\ndefault = \"b\"\n\n{lone}{b}"));
    put(&home, &text.replace("\"b\"\n\n", "\"b\" # for now\n\n").replace('\n', "\r\n"));
    assert_eq!(home.say(&["env", "remove", "b"]).code, Some(0));
    let text = fs::read_to_string(home.environments()).unwrap();
    assert_eq!(text, format!("# Mine.\n\n# for now\n\n{lone}").replace('\n', "\r\n"));

    fs::remove_file(home.environments()).unwrap();
    std::os::unix::fs::symlink("nowhere", home.environments()).unwrap();
    let said = home.say(&["env", "add", "b", "ws://b:2"]);
    assert!(said.code == Some(1) && said.err.contains("dangling symbolic link"), "{said:?}");
    fs::remove_file(home.environments()).unwrap();

    put(&home, "environments = [\n  { id = 'a', url = 'ws://a:1' }, # the first\n]\n");
    assert_eq!(home.say(&["env", "add", "b", "ws://b:2"]).code, Some(0));
    assert_eq!(home.say(&["env", "remove", "a"]).code, Some(0));
    assert_eq!(listing(&home.say(&["env", "list", "--json"]))["environments"][1]["id"], "b");
}

#[test]
fn an_invalid_change_is_refused_and_the_file_kept() {
    let home = Home::new();
    let before = "[[environments]]\nid = \"dev\"\nurl = \"ws://dev:1\"\n";
    put(&home, before);
    for (args, code, why) in [
        (&["add", "dev", "ws://other:1"][..], 2, "environment `dev` already exists"),
        (&["add", "local", "ws://other:1"], 2, "cannot use `local` as a name: it is reserved"),
        (
            &["add", "a b", "ws://other:1"],
            2,
            "only ASCII letters, digits, `-` and `_` are allowed\n  hint: try `a-b`",
        ),
        (&["add", "x", "ftp://host"], 2, "cannot use `ftp://host` as a server"),
        (&["add", "x", "ws://me:secret@host"], 2, "cannot use `ws://…@host` as a server"),
        (&["add", "x", "ws://host:1", "--token-file", "no-such-file"], 2, "no-such-file"),
        (&["add", "x"], 2, "missing the address of `x`"),
        (&["add", "x", "ssh://me:secret@host"], 2, "cannot use `ssh://…@host` as a server"),
        (&["add", "x", "ws://host:1", "--", "ssh", "host"], 2, "cannot be used with"),
        (&["remove", "nobody"], 3, "unknown environment `nobody`"),
    ] {
        let said = home.say(&[&["env"], args].concat());
        assert_eq!(said.code, Some(code), "{args:?}: {said:?}");
        assert!(said.err.contains(why) && !said.err.contains("secret"), "{args:?}: {said:?}");
        assert_eq!(fs::read_to_string(home.environments()).unwrap(), before, "{args:?}");
    }
    put(&home, "[[environments]\n");
    let said = home.say(&["env", "add", "x", "ws://host:1"]);
    assert!(said.code == Some(1) && said.err.contains("environments.toml:1: "), "{said:?}");
}

#[test]
fn a_file_in_place_of_the_configuration_directory_is_named() {
    let home = Home::new();
    let path = home.environments();
    let directory = path.parent().unwrap();
    fs::remove_dir_all(directory).unwrap();
    fs::write(directory, "").unwrap();
    let said = home.say(&["env", "add", "dev", "ws://dev:1"]);
    let told = format!(
        "remex: cannot save `{}`: `{}` is not a directory\n  hint: move that file away\n",
        path.display(),
        directory.display()
    );
    assert_eq!((said.code, said.err), (Some(1), told));
}

#[test]
fn several_errors_in_the_file_have_one_hint_each() {
    let home = Home::new();
    put(&home, "[[environments]]\nid = 'dev'\nurl = 'ssh://me:secret@far'\n[[environments]]\nid = 'b'\n");
    let path = home.environments().display().to_string();
    let told = format!(
        "remex: {path}:3: environment `dev`: cannot use `ssh://…@far` as a server: the user is empty or includes a \
         password; ssh prompts for passwords itself\n  hint: use `ssh://user@host:port`; user and port are optional\n\
         remex: {path}:4: environment `b`: `url` or `program` is missing\n  hint: add one of them\n"
    );
    let said = home.say(&["env", "list"]);
    assert_eq!((said.code, said.err), (Some(2), told));
}

#[test]
fn a_default_that_does_not_exist_can_be_replaced_or_ignored() {
    let home = Home::new();
    put(&home, "default = 'gone'\n");
    let said = home.say(&["run", "--", "true"]);
    assert!(
        said.err.contains("hint: set it with `remex env default NAME`, or ignore it with `--here`"),
        "{said:?}"
    );
    assert_eq!(home.say(&["run", "--here", "--", "true"]).code, Some(0));
    assert_eq!(home.say(&["env", "default", "local"]).code, Some(0));
    assert_eq!(home.say(&["run", "--", "true"]).code, Some(0));
}

#[test]
fn env_test_succeeds_quickly() {
    let (home, server) = (Home::new(), Server::start());
    home.add_environment("dev", server.address());
    let said = home.say(&["env", "test", "dev"]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{said:?}");
    assert!(said.out.starts_with(&format!("dev: {}\n  ok       reachable", server.address())), "{said:?}");
    let checks = [
        "reachable",
        "handshake",
        "round trip",
        "command",
        "terminal",
        "files",
        "http",
        "clock offset",
        "resume",
    ];
    let expected: Vec<_> = checks.iter().map(|name| ((*name).to_owned(), "ok".to_owned())).collect();
    assert_eq!(verdicts(&home.say(&["env", "test", server.address(), "--json"])), expected);

    // A program that leads there is another way to the same answers.
    let program = env!("CARGO_BIN_EXE_remex");
    assert_eq!(home.say(&["env", "add", "piped", "--", program, "serve", "--listen", "stdio"]).code, Some(0));
    let said = home.say(&["env", "test", "--all", "--json"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let tested = listing(&said);
    let ids: Vec<_> = tested["environments"].as_array().unwrap().iter().map(|entry| &entry["id"]).collect();
    assert_eq!(ids, ["local", "dev", "piped"]);
    assert_eq!(tested["environments"][2]["checks"][8]["verdict"], "skipped", "stdio has no way back");
}

#[test]
fn env_test_reports_failures_with_hints() {
    let home = Home::new();
    let said = home.say(&["env", "test", "ws://127.0.0.1:1"]);
    assert_eq!(said.code, Some(4));
    assert!(said.out.contains("failed   reachable") && said.out.contains("hint: "), "{said:?}");

    // It accepts and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ws://{}", silent.local_addr().unwrap());
    let said = home.say(&["env", "test", &url, "--timeout", "200ms", "--json"]);
    assert_eq!((said.code, verdicts(&said)), (Some(4), vec![("reachable".into(), "failed".into())]));

    let token = home.path("token.txt");
    fs::write(&token, "5kQ2nVx8LrZ0tHc7YwJb3M\n").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let token = token.to_str().unwrap();
    let server = Server::serve(&["--ws-auth", "capability-token", "--ws-token-file", token]);
    let said = home.say(&["env", "test", server.address()]);
    assert_eq!(said.code, Some(4));
    assert!(said.out.contains("ok       reachable") && said.out.contains("failed   handshake"), "{said:?}");
    assert!(said.out.contains("--token-file"), "{said:?}");
    let said = home.say(&["ps", "--on", server.address()]);
    let remedy = format!("remex env add NAME {} --token-file PATH", server.address());
    assert_eq!(said.code, Some(4), "{said:?}");
    assert!(said.err.contains("requires a token (status 401)") && said.err.contains(&remedy), "{said:?}");
    fs::write(home.path("other.txt"), "0ther\n").unwrap();
    fs::set_permissions(home.path("other.txt"), fs::Permissions::from_mode(0o644)).unwrap();
    let said = home.say(&["env", "add", "lab", server.address(), "--token-file", "other.txt"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("other users can read it\n  hint: run `chmod 600 "), "{said:?}");
    fs::set_permissions(home.path("other.txt"), fs::Permissions::from_mode(0o600)).unwrap();
    let said = home.say(&["ps", "--on", server.address(), "--token-file", "other.txt"]);
    assert_eq!(said.code, Some(4), "{said:?}");
    assert!(said.err.contains("refused the token (status 401)"), "{said:?}");
    assert!(said.err.contains("the log of the server says why"), "{said:?}");
    let added = home.say(&["env", "add", "lab", server.address(), "--token-file", "token.txt"]);
    assert_eq!(added.code, Some(0), "{added:?}");
    assert_eq!(home.say(&["env", "test", "lab"]).code, Some(0));

    // What is refused does not work, although the server answers.
    fs::write(token, "5kQ2nVx8LrZ0tHc7YwJb3M scope=processes,files:read,files:write\n").unwrap();
    let server = Server::serve(&["--ws-auth", "capability-token", "--ws-token-file", token]);
    fs::write(home.path("bare.txt"), "5kQ2nVx8LrZ0tHc7YwJb3M\n").unwrap();
    fs::set_permissions(home.path("bare.txt"), fs::Permissions::from_mode(0o600)).unwrap();
    let added = home.say(&["env", "add", "narrow", server.address(), "--token-file", "bare.txt"]);
    assert_eq!(added.code, Some(0), "{added:?}");
    let said = home.say(&["env", "test", "narrow"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.out.contains("failed   http") && said.out.contains("needs the scope `http`"), "{said:?}");
    assert!(said.out.contains("ok       files"), "{said:?}");

    assert!(!home.say(&["env", "list", "--json"]).out.contains("5kQ2nVx8LrZ0tHc7YwJb3M"));
}

#[test]
fn env_test_detects_a_server_that_is_silent_after_the_handshake() {
    let home = Home::new();
    let socket = home.path("mute.sock");
    let mute = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for connection in mute.incoming().map(Result::unwrap) {
            let mut line = String::new();
            BufReader::new(&connection).read_line(&mut line).unwrap();
            let hello: Value = serde_json::from_str(&line).unwrap();
            writeln!(&connection, "{}", json!({"id": hello["id"], "result": {"sessionId": "s"}})).unwrap();
            open.push(connection);
        }
    });
    let server = Server::start();
    let begun = Instant::now();
    let mute = socket.to_str().unwrap();
    let said = home.say(&["env", "test", mute, server.address(), "--timeout", "2s", "--json"]);
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert_eq!(said.code, Some(1), "{said:?}");
    let environments = &listing(&said)["environments"];
    assert_eq!(environments[0]["checks"][2]["name"], "round trip");
    assert_eq!(environments[0]["checks"][2]["what"], "timed out");
    // What could not be tried does not count as working.
    assert_eq!(environments[0]["checks"][3]["verdict"], "failed");
    assert_eq!((&environments[0]["ok"], &environments[1]["ok"]), (&json!(false), &json!(true)), "{said:?}");
}

#[test]
fn a_transport_program_without_a_server_ends_with_remex() {
    let home = Home::new();
    let started = |name: &str, args: &[&str]| {
        let pid = home.pipe(name);
        let script = format!("echo $$ > {}; exec sleep 1000", pid.display());
        assert_eq!(home.say(&["env", "add", name, "--", "sh", "-c", &script]).code, Some(0));
        let child = home.remex(args).stdin(Stdio::null()).spawn().unwrap();
        (child, Pid::from_raw(fs::read_to_string(pid).unwrap().trim().parse().unwrap()).unwrap())
    };
    let (mut interrupted, one) = started("one", &["ps", "--on", "one"]);
    kill_process(Pid::from_child(&interrupted), Signal::INT).unwrap();
    let (mut tested, two) = started("two", &["env", "test", "two", "--timeout", "3s"]);
    assert_eq!(interrupted.ended().code(), Some(130));
    assert_eq!(tested.ended().code(), Some(4));
    for pid in [one, two] {
        assert!(test_kill_process(pid).is_err(), "{pid:?} was left running");
    }
}

#[test]
fn a_variable_environment_is_not_a_default_of_commands() {
    let (home, server) = (Home::new(), Server::start());
    let mut command = home.remex(&["env", "list", "--json"]);
    command.env("REMEX_URL", server.address());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let said = home::said(&command.spawn().unwrap().finished());
    let listing: Value = serde_json::from_str(&said.out).unwrap();
    let defaults: Vec<_> = listing["environments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["id"].as_str().unwrap(), entry["default"].as_bool().unwrap()))
        .collect();
    assert_eq!(defaults, [("local", true), ("remote", false)], "{said:?}");
}

#[test]
fn a_bad_token_file_affects_only_its_environment() {
    let (home, server) = (Home::new(), Server::start());
    home.add_environment("good", server.address());
    let bad = "[[environments]]\nid = \"bad\"\nurl = \"ws://bad:1\"\nauth_bearer_token_file = \"gone\"\n";
    put(&home, &(fs::read_to_string(home.environments()).unwrap() + bad));
    let told = "environment `bad`: cannot use the token file";
    for (args, code, out) in [
        (&["env", "list"][..], 0, "bad "),
        (&["run", "--on", "good", "--", "echo", "hi"], 0, "hi\n"),
        (&["env", "test", "good"], 0, "ok       resume"),
        (&["ps", "--on", "bad"], 1, ""),
        (&["env", "add", "other", "ws://other:1"], 0, "added `other`"),
    ] {
        let said = home.say(args);
        assert_eq!(said.code, Some(code), "{args:?}: {said:?}");
        assert!(said.out.contains(out), "{args:?}: {said:?}");
        assert_eq!(said.err.matches(told).count(), 1, "{args:?}: {said:?}");
    }
    let remedy = "hint: write the token to that file, or choose another one with `remex env set bad --token-file PATH`";
    let said = home.say(&["run", "--on", "bad", "--", "true"]);
    assert_eq!(said.code, Some(125), "{said:?}");
    assert!(said.err.contains(remedy), "{said:?}");
    let said = home.say(&["env", "test", "bad", "good"]);
    assert!(said.out.contains(remedy), "{said:?}");
    assert_eq!(said.code, Some(4), "{said:?}");
    assert!(said.out.contains("failed   configuration") && said.out.contains(told), "{said:?}");
    assert!(said.out.contains("ok       resume"), "{said:?}");
    let said = home.say(&["env", "remove", "bad"]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{said:?}");
}

#[test]
fn one_value_of_an_environment_is_changed_and_the_rest_stays() {
    let home = Home::new();
    let table =
        "# My machine\n[[environments]]\nid = \"dev\" # the first\nurl = \"ws://dev:1\" # the old port\n";
    let inline = "environments = [{ id = \"dev\", url = \"ws://dev:1\" }] # all\n";
    for (before, after) in [
        (table, table.replace("dev:1", "dev:2") + "connect_timeout_sec = 5\n"),
        (inline, inline.replace("dev:1\"", "dev:2\", connect_timeout_sec = 5")),
    ] {
        put(&home, before);
        let said = home.say(&["env", "set", "dev", "ws://dev:2"]);
        assert_eq!((said.code, said.out.as_str()), (Some(0), "changed `dev`: ws://dev:2\n"), "{said:?}");
        assert_eq!(home.say(&["env", "set", "dev", "--connect-timeout", "5s"]).code, Some(0));
        assert_eq!(fs::read_to_string(home.environments()).unwrap(), after);
    }
    put(&home, table);
    let said = home.say(&["env", "set", "dev", "--default", "--", "ssh", "dev", "remex", "proxy"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let text = fs::read_to_string(home.environments()).unwrap();
    assert!(text.contains("default = \"dev\"") && text.contains("program = \"ssh\"\n"), "{text}");
    assert!(text.contains("args = [\"dev\", \"remex\", \"proxy\"]") && !text.contains("url"), "{text}");
    let said = home.say(&["env", "set", "nowhere", "--default"]);
    assert_eq!(said.code, Some(3), "{said:?}");
}

#[test]
fn a_token_file_is_used_wherever_its_environment_is_named() {
    let home = Home::new();
    let token = home.path("token.txt");
    fs::write(&token, "5kQ2nVx8LrZ0tHc7YwJb3M\n").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let path = token.to_str().unwrap();
    let server = Server::serve(&["--ws-auth", "capability-token", "--ws-token-file", path]);
    put(
        &home,
        &format!(
            "[[environments]]\nid = \"lab\"\nurl = \"{}\"\nauth_bearer_token_file = \"gone\"\n",
            server.address()
        ),
    );
    for place in [server.address(), "lab"] {
        let on = ["--on", place, "--token-file", "token.txt"];
        let said = home.say(&[&["run"], &on[..], &["--", "echo", "in"]].concat());
        assert_eq!((said.code, said.out.as_str()), (Some(0), "in\n"), "{said:?}");
        let said = home.say(&[&["ps"], &on[..]].concat());
        assert_eq!(said.code, Some(0), "{said:?}");
    }
    let said = home.say(&["doctor", "--on", server.address(), "--token-file", "token.txt"]);
    assert!(said.out.contains("handshake"), "{said:?}");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).unwrap();
    let said = home.say(&["run", "--on", server.address(), "--token-file", "token.txt", "--", "true"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("other users can read it\n  hint: run `chmod 600 "), "{said:?}");
}

#[test]
fn an_environments_file_that_is_a_fifo_is_refused_without_blocking() {
    let home = Home::new();
    let made = Command::new("mkfifo").arg(home.environments()).ended();
    assert!(made.success());
    for args in [
        &["env", "add", "dev", "ws://127.0.0.1:7070"][..],
        &["env", "set", "dev", "ws://127.0.0.1:7070"],
        &["env", "default", "dev"],
        &["env", "remove", "dev"],
    ] {
        let said = home.say(args);
        let refusal = format!(
            "remex: cannot read `{}`: it is not a regular file\n  hint: move it away; `remex env add` creates a new one\n",
            home.environments().display()
        );
        assert_eq!((said.code, said.err), (Some(1), refusal), "{args:?}");
    }
}

#[test]
fn a_peer_that_never_answers_is_named_with_the_limit() {
    let home = Home::new();
    let added = home.say(&["env", "add", "mute", "--connect-timeout", "100ms", "--", "cat"]);
    assert_eq!(added.code, Some(0), "{added:?}");
    for (args, code) in
        [(&["ls", "mute:"][..], 4), (&["ps", "--on", "mute"], 4), (&["run", "--on", "mute", "true"], 125)]
    {
        let said = home.say(args);
        assert_eq!(
            (said.code, said.err.as_str()),
            (
                Some(code),
                "remex: cannot connect to `mute`: the handshake took longer than 100ms\n  \
                 hint: check that `cat` connects to a remex server; `remex env set mute --connect-timeout 30s` allows more time\n"
            ),
            "{args:?}"
        );
    }
}

#[test]
fn a_transport_program_is_shown_quoted_for_a_shell() {
    let home = Home::new();
    let said = home.say(&["env", "add", "odd", "--", "sh", "-c", "echo 'no way' >&2; exit 3"]);
    let quoted = r"`sh -c 'echo '\''no way'\'' >&2; exit 3'`";
    assert_eq!(said.out, format!("added `odd`: {quoted}\n"), "{said:?}");
    let said = home.say(&["ls", "odd:"]);
    let told = format!(
        "remex: {quoted} exited before it responded (exit code 3); it printed: no way\n  \
         hint: run {quoted} by hand and see what it says\n"
    );
    assert_eq!((said.code, said.err), (Some(4), told));
}

#[test]
fn a_signal_ends_a_change_waiting_for_the_file_lock() {
    let home = Home::new();
    let directory = fs::File::open(home.environments().parent().unwrap()).unwrap();
    rustix::fs::flock(&directory, rustix::fs::FlockOperation::LockExclusive).unwrap();
    for signal in [Signal::INT, Signal::TERM] {
        let mut waiting = home.remex(&["env", "add", "dev", "ws://127.0.0.1:7070"]).spawn().unwrap();
        let pid = waiting.id().to_string();
        let deadline = Instant::now() + PATIENCE;
        // The kernel lists who waits for a lock with an arrow.
        let waits = |locks: &str| {
            locks.lines().any(|line| line.contains("->") && line.split_whitespace().any(|word| word == pid))
        };
        while !waits(&fs::read_to_string("/proc/locks").unwrap()) {
            assert!(Instant::now() < deadline, "waited for `env add` to wait for the lock");
            std::thread::yield_now();
        }
        kill_process(Pid::from_child(&waiting), signal).unwrap();
        let status = waiting.ended();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(signal.as_raw()),
            "{status:?}"
        );
    }
}

#[test]
fn an_environment_without_an_installation_is_not_added() {
    let home = Home::new();
    home.program("ssh", "#!/bin/sh\nexit 255\n");
    let said = home.say(&["env", "add", "build", "ssh://build.example", "--install"]);
    assert_ne!(said.code, Some(0));
    let first = said.err.lines().next().unwrap();
    assert!(first.ends_with("; `build` was not added"), "{said:?}");
    assert!(!home.environments().exists());
}
