//! How each example is run, and what must be seen.

/// How an example is run.
#[allow(dead_code, reason = "the commands that need a screen are not all there yet")]
pub(super) enum How {
    /// To its end, with nothing to read.
    Ends {
        code: i32,
        /// On standard output or standard error.
        shows: &'static str,
    },
    /// Until it shows something, and then it is ended.
    GoesOn {
        /// A command line that gives it something to show; done again while nothing is shown.
        nudge: &'static str,
        shows: &'static str,
    },
    /// On a terminal, by somebody who types.
    OnScreen { steps: &'static [Step], code: i32 },
    /// Not here, for a reason.
    Elsewhere(&'static str),
}

/// What a person waits for, and types then.
#[allow(dead_code, reason = "the commands that need a screen are not all there yet")]
pub(super) struct Step {
    pub(super) shows: &'static str,
    pub(super) keys: &'static str,
}

const fn ends(shows: &'static str) -> How {
    How::Ends { code: 0, shows }
}

const fn goes_on(shows: &'static str) -> How {
    How::GoesOn { nudge: "", shows }
}

/// Every example there is.
pub(super) const EXAMPLES: &[(&str, How)] = &[
    // env
    ("remex env list", ends("gpu")),
    ("remex env list --json", ends("\"id\":\"gpu\"")),
    ("remex env add dev ws://127.0.0.1:7070", ends("added `dev`")),
    ("remex env add far -- ssh far.example remex proxy", ends("`ssh far.example remex proxy`")),
    (
        "remex env add lab ws://lab.example:7070 --token-file token.txt --connect-timeout 5s",
        ends("added `lab`: ws://lab.example:7070"),
    ),
    ("remex env test build", ends("ok       resume")),
    ("remex env test --all", ends("gpu: ws://")),
    ("remex env test build gpu --json", ends("\"ok\":true")),
    ("remex env remove gpu", ends("removed `gpu`")),
    // doctor
    ("remex doctor", ends("own server")),
    ("remex doctor --on build", ends("ok       round trip")),
    ("remex doctor --json", ends("\"ok\":true")),
    // completions and man
    ("remex completions bash > remex.bash", ends("")),
    ("remex completions zsh > _remex", ends("")),
    ("remex completions fish > remex.fish", ends("")),
    ("remex man --dir ~/.local/share/man/man1", ends("")),
    ("remex man > remex.1", ends("")),
    // serve
    ("remex serve", goes_on("ws://127.0.0.1:")),
    ("remex serve --listen unix://$HOME/remex.sock", goes_on("/remex.sock")),
    (
        "remex serve --listen stdio",
        How::Elsewhere("it says nothing before its client does; tests/transports.rs speaks to it"),
    ),
    (
        "remex serve --listen ws://0.0.0.0:0 --ws-auth capability-token --ws-token-file token.txt",
        goes_on("ws://0.0.0.0:"),
    ),
    (
        "remex serve --listen ws://127.0.0.1:7070 &",
        How::Elsewhere("its port is fixed; tests/codex runs the same with a free one"),
    ),
];

/// Lines of the documents that are no commands of ours, by how they begin, and why they are not run here.
pub(super) const ELSEWHERE: &[(&str, &str)] = &[
    ("cargo ", "whoever runs this test has just built the program and runs the tests"),
    ("{ printf '%s\\n' \\", "it needs a release build; tests/transports.rs holds the same conversation"),
    ("CODEX_EXEC_SERVER_URL=", "tests/codex runs the real client"),
    ("scripts/", "they build with the release profile for minutes"),
    ("systemctl ", "there is no systemd in a test; tests/cli/activation.rs passes the same sockets"),
    ("sudo ", "a test is no administrator"),
    ("mkdir ", "it prepares the installation of the units"),
    ("cp ", "it installs the units"),
    ("podman ", "there are no containers in a test"),
    ("rustup ", "it changes the toolchain of the machine"),
    ("tar ", "it unpacks what scripts/package has made"),
];
