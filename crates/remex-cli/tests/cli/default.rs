//! The default environment: where commands work when nothing says where.

use std::{fs, process::Stdio};

use crate::{
    files::{World, said, serve},
    home::{self, Home, Said},
    screen::Screen,
};

/// Prints the home directory of its user.
const WHERE: [&str; 4] = ["--", "sh", "-c", "echo $HOME"];

/// Runs `remex run` with some flags, and returns whose home it sees.
fn runs_at(world: &World, variable: &str, flags: &[&str]) -> String {
    let mut command = world.here.remex(&["run"]);
    command.args(flags).args(WHERE).env("REMEX_ON", variable).stdin(Stdio::null());
    let Said { code, out, err } = home::said(&command.output().unwrap());
    assert_eq!((code, err.as_str()), (Some(0), ""), "{variable} {flags:?}");
    out.trim_end().trim_end_matches('/').to_owned()
}

fn home_of(home: &Home) -> String {
    home.path("").display().to_string().trim_end_matches('/').to_owned()
}

#[test]
fn flags_override_the_variable_and_the_variable_overrides_the_default() {
    let world = World::new();
    let gpu = Home::new();
    let server = serve(&gpu);
    world.here.add_environment("gpu", server.address());
    let (here, build, gpu) = (home_of(&world.here), home_of(&world.there), home_of(&gpu));
    assert_eq!(runs_at(&world, "", &[]), here);
    assert_eq!(world.say(&["env", "default"]), said(0, "local\n", ""));
    assert_eq!(world.say(&["env", "default", "build"]), said(0, "`build` is the default\n", ""));
    assert_eq!(world.say(&["env", "default"]), said(0, "build\n", ""));
    for (variable, flags, at) in [
        ("", &[][..], &build),
        ("gpu", &[], &gpu),
        ("local", &[], &here),
        ("", &["--here"], &here),
        ("gpu", &["--here"], &here),
        ("gpu", &["--on", "build"], &build),
        ("", &["--on", "gpu"], &gpu),
        ("", &["--on", "local"], &here),
    ] {
        assert_eq!(&runs_at(&world, variable, flags), at, "{variable} {flags:?}");
    }
    assert_eq!(world.say(&["env", "default", "--unset"]), said(0, "commands use this machine\n", ""));
    assert_eq!(runs_at(&world, "", &[]), here);
}

#[test]
fn an_invalid_value_from_a_variable_names_the_variable() {
    let home = Home::new();
    let say = |args: &[&str], variable: &str, value: &str| {
        let command = &mut home.remex(args);
        home::said(&command.env(variable, value).stdin(Stdio::null()).output().unwrap())
    };
    let unknown = "unknown environment `nope`; known: local\n  hint: add it with `remex env add nope ssh://user@host` or \
                   `remex env add nope ws://host:port`, or see `remex env list`";
    let from_variable =
        |remedy: &str| format!("remex: REMEX_ON: {unknown}; or unset REMEX_ON, or {remedy}\n");
    for (args, code) in [(&["run", "--", "true"][..], 125), (&["ps"], 3), (&["doctor"], 3)] {
        let refused = said(code, "", &from_variable("ignore it with `--here`"));
        assert_eq!(say(args, "REMEX_ON", "nope"), refused, "{args:?}");
    }
    assert_eq!(say(&["ls", ":"], "REMEX_ON", "nope"), said(3, "", &from_variable("write `ENV:path`")));
    for args in [&["ps", "--on", "nope"][..], &["doctor", "--on", "nope"], &["ls", "nope:"]] {
        assert_eq!(say(args, "REMEX_ON", "nope"), said(3, "", &format!("remex: {unknown}\n")), "{args:?}");
    }

    let invalid = "cannot use `abc` as `--escape <CHAR|none>`: it is not one ASCII character\n  \
                   hint: use one such as `%` or `^]`, or `none`";
    assert_eq!(
        say(&["run", "true"], "REMEX_ESCAPE", "abc"),
        said(2, "", &format!("remex: REMEX_ESCAPE: {invalid}; or unset REMEX_ESCAPE\n"))
    );
    assert_eq!(
        say(&["run", "--escape=abc", "true"], "REMEX_ESCAPE", "abc"),
        said(2, "", &format!("remex: {invalid}\n"))
    );
    let refused = say(&["serve"], "REMEX_LOG", "a=b=c");
    assert!(
        refused.err.starts_with("remex: REMEX_LOG: cannot use `a=b=c` as `--log <FILTER>`: "),
        "{refused:?}"
    );
}

#[test]
fn here_and_on_exclude_each_other_unless_a_variable_selects() {
    let home = Home::new();
    let refused = said(2, "", "remex: `--here` and `--on` exclude each other\n  hint: omit one of them\n");
    for args in [
        &["run", "--here", "--on", "gone", "--", "true"][..],
        &["run", "--on", "gone", "--here", "--", "true"],
        &["ps", "--here", "--on", "gone"],
        &["doctor", "--on", "gone", "--here"],
    ] {
        assert_eq!(home.say(args), refused, "{args:?}");
    }
    let words = ["run", "--here", "--", "echo", "--on", "gone", "--here"];
    assert_eq!(home.say(&words), said(0, "--on gone --here\n", ""));
}

#[test]
fn process_commands_use_the_default_environment() {
    let world = World::new();
    assert_eq!(world.say(&["env", "default", "build"]).code, Some(0));
    let started =
        world.say(&["run", "--detach", "--name", "job", "--", "sh", "-c", "echo begun; exec sleep 1000"]);
    assert_eq!(started.out, "job\n", "{started:?}");
    assert!(!world.here.own_socket().exists());

    let listed = world.say(&["ps"]);
    assert!(listed.out.contains("job"), "{listed:?}");
    assert_eq!(
        listed.err,
        "remex: showing `build`, your default environment; use `--here` for this machine\n"
    );
    assert_eq!(world.say(&["ps", "-q"]), said(0, "job\n", ""));
    assert!(world.say(&["ps", "--json"]).out.contains("\"environment\":\"build\""));
    assert!(world.say(&["ps", "--all-envs"]).out.contains("build (default)  job"));
    assert_eq!(world.say(&["ps", "--on", "build"]).err, "");
    assert!(!world.say(&["ps", "--here"]).out.contains("job"));
    assert!(world.say(&["env", "list"]).out.contains("build  default"));

    assert_eq!(world.say(&["wait", "job", "--timeout", "50ms"]).code, Some(124));
    assert_eq!(world.say(&["logs", "job"]), said(0, "begun\n", ""));
    assert_eq!(world.say(&["kill", "--tree", "job"]).code, Some(0));
    assert_eq!(world.say(&["ps", "-q"]).out, "");
    assert_eq!(world.say(&["rm", "job"]).code, Some(0));
}

#[test]
fn a_background_process_started_locally_is_named_with_the_flag_to_find_it() {
    let world = World::new();
    assert_eq!(world.say(&["env", "default", "build"]).code, Some(0));
    let args = ["run", "--here", "--detach", "--name", "mine", "--", "sleep", "1000"];
    let mut screen = Screen::remex(&world.here, &args);
    screen.wait_for("detached; it keeps running, reattach with `remex attach --here mine`");
    assert_eq!(screen.end(), Some(0));
    assert_eq!(world.say(&["ps", "--here", "-q"]), said(0, "mine\n", ""));
    assert_eq!(world.say(&["ps", "-q"]), said(0, "", ""));
    assert_eq!(world.say(&["kill", "--here", "--tree", "mine"]).code, Some(0));
}

#[test]
fn a_colon_means_the_default_environment_and_a_plain_path_is_local() {
    let world = World::new();
    fs::write(world.here.path("f"), "here\n").unwrap();
    assert_eq!(world.say(&["env", "default", "build"]).code, Some(0));
    world.quietly(&["cp", "f", ":g"]);
    assert_eq!(fs::read_to_string(world.there.path("g")).unwrap(), "here\n");
    assert_eq!(world.say(&["cat", ":g"]), said(0, "here\n", ""));
    let note = "remex: `f` is on this machine; write `:f` for build, which `remex env default` selects\n";
    assert_eq!(world.say(&["cat", "f"]), said(0, "here\n", note));
}

#[test]
fn setting_the_default_preserves_comments_in_the_file() {
    let home = Home::new();
    let environment = "# Never sleeps.\n[[environments]]\nid = \"a\"\nurl = \"ws://a:1\"\n";
    home.add_environment("a", "ws://a:1");
    let put = |text: &str| fs::write(home.environments(), text).unwrap();
    let file = || fs::read_to_string(home.environments()).unwrap();
    put(&format!("# Mine.\n\n{environment}"));
    assert_eq!(home.say(&["env", "default", "a"]), said(0, "`a` is the default\n", ""));
    assert_eq!(file(), format!("# Mine.\n\ndefault = \"a\"\n\n{environment}"));
    assert_eq!(home.say(&["env", "default", "local"]), said(0, "commands use this machine\n", ""));
    assert_eq!(home.say(&["env", "default", "--unset"]), said(0, "commands use this machine\n", ""));
    assert_eq!(file(), format!("# Mine.\n\n{environment}"));
    assert_eq!(
        home.say(&["env", "default", "nowhere"]),
        said(
            3,
            "",
            &format!(
                "remex: unknown environment `nowhere` in `{}`\n  \
                 hint: see `remex env list`, or add it with `remex env add`\n",
                home.environments().display()
            )
        )
    );

    // A failed remote command must not run locally by accident.
    put("default = 'gone'\n");
    let refused = home.say(&["run", "--", "echo", "here"]);
    assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""), "{refused:?}");
    assert!(refused.err.contains("the default environment `gone` is not defined"), "{refused:?}");
    assert_eq!(home.say(&["run", "--here", "--", "echo", "here"]), said(0, "here\n", ""));
}

#[test]
fn doctor_checks_this_host_and_says_how_to_check_the_default() {
    let world = World::new();
    assert_eq!(world.say(&["doctor"]).err, "");
    assert_eq!(world.say(&["env", "default", "build"]).code, Some(0));
    let looked = world.say(&["doctor"]);
    assert!(looked.out.contains("local server"), "{looked:?}");
    assert_eq!(
        (looked.code, looked.err.as_str()),
        (
            Some(0),
            "remex: checking this machine; `remex doctor --on build` checks your default environment\n"
        )
    );
    let json = world.say(&["doctor", "--json"]);
    assert_eq!(json.err, "");
    let there = world.say(&["doctor", "--on", "build"]);
    assert!(!there.err.contains("this machine") && !there.out.contains("local server"), "{there:?}");
}
