//! Shell snapshots: the files of a shell run once, and later commands find what they set up.

use rustix::process::Pid;
use serde_json::{Value, json};

use crate::support::{Client, Place, Server, Watched, install, program, start_params, with};

/// A profile with what is hard to restore; it leaves a line in `ran` each time.
const PROFILE: &str = r#"
echo noise; echo noise >&2
echo ran >> "$HOME/ran"
export PLAIN=plain
export LINES_AND_QUOTES="one
two 'single' \"double\" \$dollar `printf '\140'`"
export MY_SECRET=hidden API_KEY=hidden
readonly FIXED=fixed; export FIXED
unset REMOVED
not_exported=no
greet() {
    printf '%s: %s\n' "$1" 'it'"'"'s
here'
}
"#;

/// A server whose user has a home with profile files.
struct Host {
    home: Place,
    client: Client,
    _server: Server,
}

impl Host {
    fn new(files: &[&str], profile: &str) -> Self {
        Self::with_limits(files, profile, "")
    }

    fn with_limits(files: &[&str], profile: &str, limits: &str) -> Self {
        let home = Place::new();
        for file in files {
            home.write(file, profile);
        }
        home.write("ran", "");
        let config = home.write("server.toml", format!("listen = ['stdio']\n[limits]\n{limits}\n"));
        let mut command = program(&["serve", "--config", config.to_str().expect("the path is text")]);
        command.env("HOME", home.path("")).env("REMOVED", "by the profile").env_remove("BASH_ENV");
        let (server, client) = Server::launch_stdio(command);
        client.initialize();
        Host { home, client, _server: server }
    }

    /// Runs a command in a login shell with a snapshot, and returns what it prints.
    fn run(&self, id: &str, shell: (&str, &str), command: &str, more: Value) -> String {
        let snapshot = json!({"scopeId": "scope", "shell": {"name": shell.0, "path": shell.1}});
        let usual = json!({"shellSnapshot": snapshot, "envPolicy": policy(), "env": {}});
        self.client.start(id, &[shell.1, "-lc", command, "name", "an argument"], with(usual, more));
        let output = self.client.collect(id);
        assert_eq!(output.exit_code(), 0, "{}", output.text());
        output.text()
    }

    /// Asserts that a process has ended whose id is in a file.
    fn assert_ended(&self, file: &str) {
        let pid = self.home.read(file).trim().parse().ok().and_then(Pid::from_raw);
        if let Some(left) = Watched::find(pid.expect("the shell has written it")) {
            left.assert_ends();
        }
    }

    /// Returns how often the profile has run.
    fn runs(&self) -> usize {
        self.home.read("ran").lines().count()
    }
}

fn policy() -> Value {
    json!({"inherit": "all", "ignoreDefaultExcludes": false, "exclude": [], "set": {}, "includeOnly": []})
}

const BASH: (&str, &str) = ("bash", "/bin/bash");

#[test]
fn bash_restores_functions_variables_and_options_and_runs_its_profile_once() {
    let more = "shopt -s extglob\nset -o noclobber\npick() { case $1 in @(a|b)) echo picked;; esac; }\n";
    let host = Host::new(&[".bash_profile"], &format!("{PROFILE}{more}"));
    let command = "greet x; pick b; printf '[%s]' \"$0\" \"$1\" \"$PLAIN\" \"$LINES_AND_QUOTES\" \"$FIXED\" \
                   \"$MY_SECRET\" \"$API_KEY\" \"$REMOVED\" \"$not_exported\"; set -o | grep noclobber; \
                   env | grep -c SHELL_SNAPSHOT; exit 0";
    let expected = "x: it's\nhere\npicked\n[name][an argument][plain][one\ntwo 'single' \"double\" $dollar `]\
                    [fixed][][][][]noclobber      \ton\n0\n";
    for id in ["first", "second", "third"] {
        assert_eq!(host.run(id, BASH, command, json!({})), expected, "{id}");
    }
    assert_eq!(host.runs(), 1);
}

#[test]
fn sh_and_zsh_restore_what_they_can_print() {
    for (shell, file, command) in [
        (
            ("sh", "/bin/sh"),
            ".profile",
            "printf '[%s]' \"$PLAIN\" \"$LINES_AND_QUOTES\" \"$MY_SECRET\" \"$1\"",
        ),
        (
            ("zsh", "/usr/bin/zsh"),
            ".zprofile",
            "greet x; printf '[%s]' \"$PLAIN\" \"$LINES_AND_QUOTES\" \"$MY_SECRET\" \"$1\"",
        ),
    ] {
        if shell.0 == "zsh" && install("shells").is_none() {
            continue;
        }
        let host = Host::new(&[file], PROFILE);
        let values = "[plain][one\ntwo 'single' \"double\" $dollar `][][an argument]";
        let greeting = if shell.0 == "zsh" { "x: it's\nhere\n" } else { "" };
        for id in ["first", "second"] {
            assert_eq!(
                host.run(id, shell, command, json!({})),
                format!("{greeting}{values}"),
                "{shell:?} {id}"
            );
        }
        assert_eq!(host.runs(), 1, "{shell:?}");
    }
}

#[test]
fn variables_of_a_start_override_the_snapshot_and_do_not_leak_into_other_starts() {
    let host = Host::new(&[".bash_profile"], "echo ran >> ~/ran\nexport A=profile B=profile\n");
    let print = "printf '%s ' \"$A\" \"$B\" \"$C\" \"$D_TOKEN\"";
    let first = host.run("1", BASH, print, json!({"env": {"A": "mine", "C": "first", "D_TOKEN": "t"}}));
    assert_eq!(first, "mine profile first t ");
    assert_eq!(host.run("2", BASH, print, json!({"env": {"B": "mine"}})), "profile mine   ");
    assert_eq!(host.runs(), 1);
}

#[test]
fn each_scope_directory_and_policy_has_its_own_snapshot() {
    let host = Host::new(&[".bash_profile"], "echo ran >> ~/ran\nexport WHERE=$PWD MY_KEY=k\n");
    let print = "printf '%s %s' \"$WHERE\" \"$MY_KEY\"";
    assert_eq!(host.run("1", BASH, print, json!({"cwd": "file:///tmp"})), "/tmp ");
    assert_eq!(host.run("2", BASH, print, json!({"cwd": "file:///usr"})), "/usr ");
    let open = with(policy(), json!({"ignoreDefaultExcludes": true}));
    assert_eq!(host.run("3", BASH, print, json!({"cwd": "file:///usr", "envPolicy": open})), "/usr k");
    let other = json!({"scopeId": "other", "shell": {"name": "bash", "path": "/bin/bash"}});
    assert_eq!(host.run("4", BASH, print, json!({"cwd": "file:///usr", "shellSnapshot": other})), "/usr ");
    assert_eq!(host.runs(), 4);
    assert_eq!(host.run("5", BASH, print, json!({"cwd": "file:///tmp"})), "/tmp ");
    assert_eq!(host.runs(), 4);
    // A session never uses the snapshots of another; on stdio there is one, so many scopes drop the oldest instead.
    for number in 0..16 {
        let scope = json!({"scopeId": number.to_string(), "shell": {"name": "bash", "path": "/bin/bash"}});
        host.run(&format!("scope {number}"), BASH, print, json!({"shellSnapshot": scope}));
    }
    host.run("6", BASH, print, json!({"cwd": "file:///tmp"}));
    assert_eq!(host.runs(), 4 + 16 + 1);
}

#[test]
fn a_failed_capture_changes_nothing_and_is_not_retried() {
    let fill =
        "i=0; while [ $i -lt 600 ]; do eval \"big_$i() { : $(printf '%01000d' 0); }\"; i=$((i+1)); done\n";
    for (what, profile, limits) in [
        (
            "hangs",
            "[ -e ~/hung ] || { sleep 1000 & echo $! > ~/hung; wait; }\n",
            "shell_snapshot_time = '300ms'",
        ),
        ("fails", "[ -e ~/failed ] || { : > ~/failed; exit 3; }\n", ""),
        ("is too large", fill, ""),
    ] {
        let profile = format!("echo ran >> ~/ran\n{profile}export A=set\n");
        let host = Host::with_limits(&[".bash_profile"], &profile, limits);
        for (id, runs) in [("first", 2), ("second", 3)] {
            assert_eq!(host.run(id, BASH, "shopt -q login_shell && echo $A", json!({})), "set\n", "{what}");
            assert_eq!(host.runs(), runs, "{what}: the command runs its profile itself");
        }
        if what == "hangs" {
            // Nothing of the capture is left.
            host.assert_ended("hung");
        }
    }
}

/// A file for interactive shells that sets up more than a profile.
const RC: &str = r#"
echo noise; echo noise >&2; (while echo noise; do :; done) & noisy=$!
read -r line && export FROM_STDIN="$line"
export FROM_RC="$FROM_PROFILE rc"
printf() { echo 'not the one'; }
alias set='echo' env='echo' hello='echo hello'
load() { echo loaded; }
echo rc >> ~/ran
"#;

#[test]
fn commands_see_what_the_interactive_startup_file_sets_up() {
    let end = "kill $noisy\n";
    let bash = format!("{RC}shopt -s expand_aliases\n{end}");
    let profile = "echo profile >> ~/ran\nexport FROM_PROFILE=profile ENV=$HOME/.shinit\n";
    for (shell, login, rc, text) in [
        (BASH, ".bash_profile", ".bashrc", bash),
        (("sh", "/bin/sh"), ".profile", ".shinit", format!("{RC}{end}")),
        (("zsh", "/usr/bin/zsh"), ".zprofile", ".zshrc", format!("{RC}{end}")),
    ] {
        if shell.0 == "zsh" && install("shells").is_none() {
            continue;
        }
        let host = Host::new(&[login], profile);
        host.home.write(rc, text);
        let function = if shell.0 == "sh" { "echo loaded" } else { "load" };
        let command = format!("{function}\nhello you\necho \"$FROM_RC [$FROM_STDIN]\"");
        for id in ["first", "second"] {
            let printed = host.run(id, shell, &command, json!({}));
            assert_eq!(printed, "loaded\nhello you\nprofile rc []\n", "{shell:?} {id}");
        }
        assert_eq!(host.home.read("ran"), "profile\nrc\n", "{shell:?}");
    }
}

#[test]
fn bash_skips_its_interactive_startup_file_if_another_one_is_configured() {
    let host = Host::new(&[".bash_profile"], "export BASH_ENV=$HOME/env\n");
    host.home.write("env", "");
    host.home.write(".bashrc", "export FROM_RC=rc\n");
    assert_eq!(host.run("p", BASH, "echo [$FROM_RC]", json!({})), "[]\n");
}

#[test]
fn a_startup_file_that_returns_early_in_noninteractive_shells_is_respected() {
    let host = Host::new(&[], "");
    let rc = "export BEFORE=before\ncase $- in *i*) ;; *) return;; esac\nexport AFTER=after\n";
    host.home.write(".bashrc", rc);
    assert_eq!(host.run("p", BASH, "echo [$BEFORE] [$AFTER]", json!({})), "[before] []\n");
}

#[test]
fn a_failing_interactive_startup_file_loses_nothing_of_the_profile() {
    let start = "sleep 1000 & echo $! > ~/started; export FROM_RC=rc\n";
    for (what, rc) in [
        ("exits", "exit 0\n"),
        ("fails", "exit 3\n"),
        ("is replaced", "exec true\n"),
        ("stops at failures", "set -e; false\n"),
        (
            "is too large",
            "i=0; while [ $i -lt 600 ]; do eval \"big_$i() { : $(printf '%01000d' 0); }\"; i=$((i+1)); done\n",
        ),
    ] {
        let host = Host::new(&[".bash_profile"], "echo ran >> ~/ran\nexport FROM_PROFILE=profile\n");
        host.home.write(".bashrc", format!("{start}{rc}"));
        for id in ["first", "second"] {
            let printed = host.run(id, BASH, "echo $FROM_PROFILE [$FROM_RC]", json!({}));
            assert_eq!(printed, "profile []\n", "{what} {id}");
        }
        assert_eq!(host.runs(), 2, "{what}: with the file and without it");
        host.assert_ended("started");
    }
}

#[test]
fn an_interactive_startup_file_that_hangs_or_leaves_processes_behind_is_harmless() {
    let profile = "echo ran >> ~/ran\nexport FROM_PROFILE=profile\n";
    let host = Host::with_limits(&[".bash_profile"], profile, "shell_snapshot_time = '300ms'");
    host.home.write(".bashrc", "sleep 1000 & echo $! > ~/started; wait\n");
    for (id, runs) in [("first", 2), ("second", 3)] {
        assert_eq!(host.run(id, BASH, "echo $FROM_PROFILE", json!({})), "profile\n");
        assert_eq!(host.runs(), runs);
    }
    host.assert_ended("started");

    let host = Host::new(&[".bash_profile"], profile);
    host.home.write(".bashrc", "setsid sleep 1000 & echo $! > ~/started; export AGENT=$!\n");
    assert_eq!(host.run("p", BASH, "kill -0 $AGENT && echo runs", json!({})), "runs\n");
    let Host { home, client, _server } = host;
    drop((client, _server));
    let pid = home.read("started").trim().parse().ok().and_then(Pid::from_raw);
    if let Some(left) = Watched::find(pid.expect("the shell has written it")) {
        left.assert_ends();
    }
}

#[test]
fn terminals_and_terminated_starts_use_snapshots_too() {
    let host =
        Host::new(&[".bash_profile"], "echo ran >> ~/ran\n[ -e ~/hang ] && sleep 1000\nf() { echo f; }\n");
    let output = || {
        let params = start_params("t", &["/bin/bash", "-lc", "f; tty"]);
        let snapshot = json!({"scopeId": "s", "shell": {"name": "bash", "path": "/bin/bash"}});
        with(params, json!({"tty": true, "envPolicy": policy(), "env": {}, "shellSnapshot": snapshot}))
    };
    host.client.call("process/start", output()).expect("it starts");
    let text = host.client.wait_for_output("t", "/dev/pts/");
    assert!(text.starts_with("f\r\n"), "{text:?}");

    host.home.write("hang", "");
    let hanging = with(output(), json!({"processId": "h", "tty": false, "cwd": "file:///usr"}));
    let start = host.client.send("process/start", hanging);
    host.client.call("process/terminate", json!({"processId": "h"})).expect("it is known");
    let error = host.client.outcome(&start).expect_err("its start was aborted");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("was terminated")), "{error}");
}

#[test]
fn invalid_snapshots_are_refused_and_other_commands_ignore_them() {
    let host = Host::new(&[".bash_profile"], "echo ran >> ~/ran\n");
    let start = |id: &str, argv: &[&str], snapshot: Value| {
        let params = with(start_params(id, argv), json!({"envPolicy": policy(), "env": {}}));
        with(params, json!({"shellSnapshot": snapshot}))
    };
    let scope = "shell snapshot scope must be non-empty and at most 256 bytes";
    for (argv, snapshot, message) in [
        (
            ["/bin/bash", "-lc", ":"],
            json!({"scopeId": "", "shell": {"name": "bash", "path": "/bin/bash"}}),
            scope,
        ),
        (
            ["/bin/bash", "-c", ":"],
            json!({"scopeId": "x".repeat(257), "shell": {"name": "bash", "path": "/bin/bash"}}),
            scope,
        ),
        (
            ["/bin/fish", "-lc", ":"],
            json!({"scopeId": "s", "shell": {"name": "fish", "path": "/bin/fish"}}),
            "`fish`",
        ),
        (["/bin/bash", "-lc", ":"], json!({"scopeId": "s"}), "missing field `shell`"),
    ] {
        let (code, text) = host.client.refusal("process/start", start("p", &argv, snapshot));
        assert_eq!(code, -32602);
        assert!(text.contains(message), "{text}");
    }
    let bash = json!({"scopeId": "s", "shell": {"name": "bash", "path": "/bin/bash"}});
    for (id, argv, snapshot) in [
        ("plain", ["/bin/bash", "-c", "echo $0"], bash.clone()),
        ("other", ["/bin/sh", "-c", "echo $0"], bash),
        ("null", ["/bin/sh", "-c", "echo $0"], Value::Null),
    ] {
        host.client.call("process/start", start(id, &argv, snapshot)).expect("it starts");
        assert_eq!(host.client.collect(id).text(), format!("{}\n", argv[0]));
    }
    assert_eq!(host.runs(), 0);
}
