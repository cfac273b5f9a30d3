//! What every command has in common.

use crate::{home::Home, screen::Screen};

#[test]
fn without_a_command_help_is_printed() {
    let said = Home::new().say(&[]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("Usage: remex"), "{said:?}");
}

#[test]
fn a_terminal_shows_what_a_program_prints() {
    let home = Home::new();
    let mut screen = Screen::open(&home, "sh", &["-c", "stty size; tty -s && echo terminal; read x; exit 7"]);
    screen.wait_for("24 80\nterminal");
    screen.keys("\r");
    assert_eq!(screen.end(), Some(7));
}

#[test]
fn an_unknown_command_suggests_a_similar_one() {
    let home = Home::new();
    for (typed, meant) in [
        (&["exec", "true"][..], "unknown command `exec`; did you mean `remex run`?"),
        (&["stop", "build"], "unknown command `stop`; did you mean `remex kill`?"),
        (&["rnu", "true"], "unknown command `rnu`; did you mean `remex run`?"),
        (&["env", "lsit"], "unknown command `lsit`; did you mean `remex env list`?"),
    ] {
        let said = home.say(typed);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert_eq!(said.err.lines().next(), Some(format!("remex: {meant}").as_str()), "{said:?}");
    }
}

#[test]
fn an_environment_option_for_files_is_refused_with_the_colon_syntax() {
    for (args, what, example) in [
        (&["ls", "--on", "build"][..], "--on", "remex ls ENV:PATH"),
        (&["cp", "--on", "build", "a", "b"], "--on", "remex cp SRC ENV:DST"),
        (&["cat", "--on=build", "a"], "--on", "remex cat ENV:PATH"),
        (&["edit", "--on", "build", "a"], "--on", "remex edit ENV:PATH"),
        (&["watch", "--here"], "--here", "remex watch PATH"),
    ] {
        let said = Home::new().say(args);
        let (told, more) = if what == "--here" {
            ("a path without `ENV:` is on this machine", "")
        } else {
            let name = "; give an address a name first with `remex env add ENV URL`";
            ("put the environment before the path", name)
        };
        let expected = format!("remex: unexpected option `{what}`\n  hint: {told}: `{example}`{more}\n");
        assert_eq!((said.code, said.err), (Some(2), expected), "{args:?}");
    }
}

#[test]
fn a_missing_file_that_a_flag_names_is_a_usage_error() {
    let listen = "wss://127.0.0.1:0";
    for args in [
        &["serve", "--config", "nosuch"][..],
        &["serve", "--ws-auth", "capability-token", "--ws-token-file", "nosuch"],
        &["serve", "--ws-auth", "signed-bearer-token", "--ws-shared-secret-file", "nosuch"],
        &["serve", "--listen", listen, "--tls-cert", "nosuch", "--tls-key", "nosuch"],
        &["ps", "--on", "ws://127.0.0.1:1", "--token-file", "nosuch"],
        &["token", "new", "--expires", "1d", "--secret-file", "nosuch"],
        &["token", "new", "--expires", "1d", "--key", "nosuch"],
    ] {
        let said = Home::new().say(args);
        assert_eq!(said.code, Some(2), "{args:?}: {said:?}");
        assert_eq!(said.err.lines().count(), 2, "{args:?}: {said:?}");
    }
    assert_eq!(Home::new().say(&["token", "jwks", "nosuch"]).code, Some(3));
}

#[test]
fn an_empty_token_file_is_refused_before_connecting() {
    let home = Home::new();
    std::fs::write(home.path("token.txt"), "\n").unwrap();
    std::fs::set_permissions(home.path("token.txt"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    let said = home.say(&["ps", "--on", "ws://127.0.0.1:1", "--token-file", "token.txt"]);
    let expected = "remex: the token file `token.txt` is empty\n  hint: write the token to it\n";
    assert_eq!((said.code, said.err.as_str()), (Some(2), expected));
}

#[test]
fn a_syntax_error_in_a_file_names_the_line_to_correct() {
    let home = Home::new();
    std::fs::write(home.path("server.toml"), "log = \"info\"\nlisten = [\n").unwrap();
    let said = home.say(&["serve", "--config", "server.toml"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("\n  hint: correct line "), "{said:?}");
    assert!(said.err.ends_with("; `remex serve --print-config` prints a valid file\n"), "{said:?}");

    std::fs::write(home.environments(), "default = \n").unwrap();
    std::fs::set_permissions(home.environments(), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    let said = home.say(&["ps", "--on", "build"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.ends_with("\n  hint: correct line 1, or see `remex env --help`\n"), "{said:?}");
}
