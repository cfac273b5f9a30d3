//! What commands and options of other programs are here.
//!
//! Start at [`synonym`] and [`advice_on_command`].

/// Commands of other programs, and those of ours that do the same.
const SYNONYMS: &[(&str, &str)] = &[
    ("check", "doctor"),
    ("connect", "attach"),
    ("copy", "cp"),
    ("curl", "http"),
    ("delete", "rm"),
    ("describe", "inspect"),
    ("dir", "ls"),
    ("download", "cp"),
    ("environment", "env"),
    ("environments", "env"),
    ("exec", "run"),
    ("fg", "attach"),
    ("get", "cp"),
    ("hosts", "env"),
    ("htop", "top"),
    ("info", "inspect"),
    ("jobs", "ps"),
    ("list", "ps"),
    ("log", "logs"),
    ("md", "mkdir"),
    ("move", "mv"),
    ("nano", "edit"),
    ("new-session", "shell"),
    ("put", "cp"),
    ("reattach", "attach"),
    ("remote", "env"),
    ("rename", "mv"),
    ("request", "http"),
    ("rsync", "cp"),
    ("scp", "cp"),
    ("sftp", "cp"),
    ("sh", "shell"),
    ("show", "inspect"),
    ("signal", "kill"),
    ("spawn", "run"),
    ("ssh", "shell"),
    ("start", "run"),
    ("stop", "kill"),
    ("sync", "cp"),
    ("tail", "logs"),
    ("terminate", "kill"),
    ("update", "upgrade"),
    ("upload", "cp"),
    ("vi", "edit"),
    ("vim", "edit"),
];

/// Commands of other programs that none of ours does under one name, and how to get the same.
pub(super) const ADVICE_ON_COMMANDS: &[(&str, &str)] = &[
    ("bg", CONTINUE),
    ("cont", CONTINUE),
    ("continue", CONTINUE),
    ("detach", "type `~.` at the beginning of a line in `remex attach` or `remex shell`"),
    ("disown", "start it with `remex run --detach`; then nothing waits for it"),
    ("install", "`remex env add NAME ssh://you@host --install` copies remex to a host"),
    ("login", LOGIN),
    ("logout", "remex keeps no login; `remex env remove NAME` forgets a host"),
    ("nohup", "`remex run --detach -- COMMAND` runs a command that survives you"),
    ("pause", SUSPEND),
    ("resume", CONTINUE),
    ("signin", LOGIN),
    ("suspend", SUSPEND),
    ("unpause", CONTINUE),
    ("version", "`remex --version` prints the version"),
];

const SUSPEND: &str =
    "`remex kill NAME --signal STOP` suspends a process, and `remex kill NAME --signal CONT` lets it go on";
const CONTINUE: &str =
    "`remex kill NAME --signal CONT` lets a suspended process go on, and `remex attach NAME` shows it";
const LOGIN: &str =
    "`remex env add NAME ssh://you@host` adds a host, and `remex shell --on NAME` opens a login shell there";

/// Options of other programs, and those of ours that do the same.
const OPTION_SYNONYMS: &[(&str, &str)] = &[
    ("background", "detach"),
    ("chdir", "cwd"),
    ("daemon", "detach"),
    ("dir", "cwd"),
    ("directory", "cwd"),
    ("environment", "on"),
    ("host", "on"),
    ("lines", "tail"),
    ("local", "here"),
    ("memory", "limit"),
    ("network", "net"),
    ("server", "on"),
    ("tty", "terminal"),
    ("workdir", "cwd"),
    ("working-dir", "cwd"),
    ("working-directory", "cwd"),
];

/// Options of other programs that need none here, or something else: command, option, advice.
pub(super) const ADVICE_ON_OPTIONS: &[(&str, &str, &str)] = &[
    (
        "run",
        "--rm",
        "omit it: `remex run` leaves nothing behind; `remex rm NAME` removes what ran with `--detach` and has exited",
    ),
    ("run", "--volume", "omit it: commands see the files of the host; copy others there with `remex cp`"),
    ("ps", "--format", "use `--json`; docs/json.md describes its members"),
];

/// Returns the command of ours that does what one of another program does.
pub(super) fn synonym(command: &str) -> Option<&'static str> {
    SYNONYMS.iter().find(|(other, _)| *other == command).map(|(_, ours)| *ours)
}

/// Returns how to get what a command of another program does.
pub(super) fn advice_on_command(command: &str) -> Option<&'static str> {
    ADVICE_ON_COMMANDS.iter().find(|(other, _)| *other == command).map(|(_, advice)| *advice)
}

/// Returns the option of ours that does what one of another program does; both without dashes.
pub(super) fn option_synonym(option: &str) -> Option<&'static str> {
    OPTION_SYNONYMS.iter().find(|(other, _)| *other == option).map(|(_, ours)| *ours)
}

/// Returns what to do instead of giving a command, such as `remex run`, this option.
pub(super) fn advice_on_option(command: &str, option: &str) -> Option<&'static str> {
    let command = command.strip_prefix("remex ")?;
    let option = option.split('=').next()?;
    let advice = ADVICE_ON_OPTIONS.iter().find(|(of, other, _)| (*of, *other) == (command, option));
    advice.map(|(_, _, advice)| *advice)
}
