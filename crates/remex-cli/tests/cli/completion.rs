//! Completions in real shells.

use std::{
    fs,
    net::TcpListener,
    time::{Duration, Instant},
};

use crate::{
    background_processes::UserSession, commands::Commands, home::Home, screen::Screen, support::install,
};

/// Asks as the scripts do, and returns the candidates without their descriptions.
fn offered(home: &Home, words: &[&str]) -> Vec<String> {
    let said = home.say(&[&["complete", "fish", "--", "remex"], words].concat());
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{words:?}");
    said.out.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
}

/// Makes processes `build` and `bake` on the user's own server, an environment `far` of it, and files.
fn world() -> UserSession {
    let user = UserSession::open("night");
    user.ready("build", "echo ready; exec sleep 1000");
    user.ready("bake", "echo ready; exec sleep 1000");
    user.home.add_environment("far", &format!("unix://{}", user.home.own_socket().display()));
    for name in ["site", "site/css"] {
        fs::create_dir(user.home.path(name)).unwrap();
    }
    fs::write(user.home.path("site/two words"), "").unwrap();
    user
}

/// Opens a shell that knows our completions, and returns it when it is ready.
fn shell(home: &Home, program: &str, args: &[&str], name: &str, load: &str) -> Screen {
    fs::write(home.path("script"), home.say(&["completions", name]).out).unwrap();
    let screen = Screen::open(home, program, args);
    screen.keys(&format!("{load}; echo re''ady\n"));
    screen.wait_for("ready");
    screen
}

/// Types lines with tabs, and waits for what the shell makes of each.
fn check(screen: &Screen, typed: &[(&str, &str)]) {
    for (keys, shown) in typed {
        screen.keys(keys);
        screen.wait_until(&format!("`{shown}` after {keys:?}"), |screen| {
            screen.trim_end().lines().last().is_some_and(|line| line.trim_end().ends_with(shown))
        });
        // Ctrl-U, and a new prompt on an empty screen.
        screen.keys("\u{15}clear\n");
        screen.wait_until("an empty screen", |screen| !screen.contains("remex"));
    }
}

/// What is typed, and what every shell makes of it.
const TYPED: [(&str, &str); 7] = [
    ("remex comp\tfi\t", "remex completions fish"),
    ("remex kill bu\t--tr\t", "remex kill build --tree"),
    ("remex kill --on fa\tbak\t", "remex kill --on far bake"),
    ("remex kill --on=fa\tbu\t", "remex kill --on=far build"),
    ("remex kill --signal US\t1 bu\t", "remex kill --signal USR1 build"),
    ("remex ls fa\tsi\tcs\t", "remex ls far:site/css/"),
    ("remex cat si\ttw\t", "remex cat site/two\\ words"),
];

#[test]
fn bash_completes_names_from_servers_and_files() {
    let user = world();
    let screen = shell(&user.home, "bash", &["--norc", "--noprofile", "-i"], "bash", "PS1='> '; . ./script");
    check(&screen, &TYPED);
    // Options begin with `-`, which was not typed.
    for line in ["remex ps \t\tx", "remex resize build \tx", "remex prune \t\tx"] {
        check(&screen, &[(line, &line.replace('\t', ""))]);
    }
}

#[test]
fn zsh_completes_names_from_servers_and_files() {
    in_other_shell("zsh", "zsh", &["-f", "-i"], "PS1='> '; autoload -U compinit; compinit -D -u; . ./script");
}

#[test]
fn fish_completes_names_from_servers_and_files() {
    let load = "function fish_prompt; echo '> '; end; set -g fish_autosuggestion_enabled 0; source script";
    in_other_shell("fish", "fish", &["--no-config", "-i"], load);
}

/// Does the same in a shell that not every machine has.
fn in_other_shell(name: &str, program: &str, args: &[&str], load: &str) {
    if install("shells").is_none() {
        return;
    }
    let user = world();
    let screen = shell(&user.home, program, args, name, load);
    check(&screen, &TYPED);
}

#[test]
fn every_command_and_option_is_completed() {
    let home = Home::new();
    let all = offered(&home, &[""]);
    for words in Commands::of(&home).all {
        let (last, before) = words.split_last().unwrap();
        if before.is_empty() {
            assert!(all.contains(last), "`{last}` is not offered");
        }
        let words: Vec<_> = words.iter().map(String::as_str).chain(["--"]).collect();
        assert!(offered(&home, &words).contains(&"--help".to_owned()), "{words:?}");
    }
    assert!(!all.contains(&"complete".to_owned()), "it is for scripts");
    let hidden = offered(&home, &["serve", "--"]);
    assert!(!hidden.contains(&"--strict-config".to_owned()), "{hidden:?}");
}

#[test]
fn slow_completions_are_omitted_without_messages_or_starting_a_server() {
    let home = Home::new();
    assert!(offered(&home, &["kill", ""]).is_empty());
    assert!(!home.own_socket().exists(), "no server is started");

    // It takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    home.add_environment("silent", &format!("ws://{}", silent.local_addr().unwrap()));
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    home.add_environment("gone", &format!("ws://{gone}"));
    let marker = home.path("was run");
    let mut text = fs::read_to_string(home.environments()).unwrap();
    text.push_str(&format!(
        "[[environments]]\nid = \"ssh\"\nprogram = \"touch\"\nargs = [\"{}\"]\n",
        marker.display()
    ));
    fs::write(home.environments(), text).unwrap();
    for place in ["silent", "gone", "ssh", "unknown", "no name", "ws://", "/nowhere"] {
        let before = Instant::now();
        assert!(offered(&home, &["kill", "--on", place, ""]).is_empty(), "{place}");
        assert!(offered(&home, &["ls", &format!("{place}:a")]).is_empty(), "{place}");
        assert!(before.elapsed() < Duration::from_secs(10), "{place}");
    }
    assert!(!marker.exists(), "no program is run");

    fs::write(home.environments(), "nonsense").unwrap();
    assert!(offered(&home, &["ps", "--on", ""]).is_empty());
    let said = home.say(&["complete", "bash", "--", "remex 'half"]);
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (Some(0), "", ""));
}
