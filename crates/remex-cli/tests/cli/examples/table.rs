//! How each example is run, and what must be seen.

/// How an example is run.
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
pub(super) struct Step {
    /// One of these.
    pub(super) shows: &'static [&'static str],
    pub(super) keys: &'static str,
}

/// The end of the prompt of a shell, root's and others'.
const PROMPT: &[&str] = &["# ", "$ "];

/// What somebody types who goes and lets it run.
const DETACH: &str = "\r~.";

const fn ends(shows: &'static str) -> How {
    How::Ends { code: 0, shows }
}

const fn goes_on(shows: &'static str) -> How {
    How::GoesOn { nudge: "", shows }
}

const fn typed(shows: &'static [Step]) -> How {
    How::OnScreen { steps: shows, code: 0 }
}

/// Why requests are not made here.
const HTTP: &str = "the port is fixed; tests/cli/http.rs has web servers of its own";

/// Every example there is.
pub(super) const EXAMPLES: &[(&str, How)] = &[
    // run, shell, attach
    ("remex run -- uname -a", ends("Linux")),
    ("remex run --on build -- wc -l < notes.txt", ends("1")),
    ("remex run --on build -t -- top", typed(&[Step { shows: &["PID"], keys: "q" }])),
    ("remex run --detach --name nightly -- sh -c 'echo started; sleep 1000'", ends("nightly")),
    ("remex run --detach --label team=web --label tier=front -- sleep 1000", ends("sleep-")),
    ("remex run --on build --timeout 1m --cwd '~' --env LANG=C -- ls", ends("notes.txt")),
    (
        "remex run --on build --secret DEPLOY_TOKEN=token.txt -- printenv DEPLOY_TOKEN",
        ends("5kQ2nVx8LrZ0tHc7YwJb3M"),
    ),
    ("remex run --limit cpu=10s --limit memory=512M -- sort notes.txt", ends("remember the milk")),
    ("remex run --limit cpu=10s --limit memory=512M -- sh -c 'ulimit -t'", ends("10")),
    ("remex run --detach --name worker --restart on-failure -- sleep 1000", ends("worker")),
    ("remex run --sandbox workspace-write -- sort -o sorted.txt notes.txt", ends("")),
    (
        "remex run --sandbox workspace-write --net allow=git.example.com,*.example.org -- git fetch",
        How::Elsewhere("it needs hosts of the internet; `managed_network.rs` has others"),
    ),
    (
        "remex run --on far -A -- git fetch",
        How::Elsewhere("it needs an ssh host; tests/cli/ssh_login.rs has one"),
    ),
    (
        "remex run --on build --user nobody -- id -un",
        How::Elsewhere("only a server of root can do it; tests/cli/user.rs has one"),
    ),
    (
        "remex shell --on build --user postgres",
        How::Elsewhere("only a server of root can do it; tests/cli/user.rs has one"),
    ),
    ("remex shell", typed(&[Step { shows: PROMPT, keys: "exit\r" }])),
    ("remex shell --on build --name work", typed(&[Step { shows: PROMPT, keys: "exit\r" }])),
    ("remex attach --on build work", typed(&[Step { shows: &["building"], keys: DETACH }])),
    ("remex attach --on far -A work", How::Elsewhere("it needs an ssh host; tests/cli/ssh_login.rs has one")),
    ("remex attach build", typed(&[Step { shows: &["building"], keys: DETACH }])),
    (
        "remex attach --on build --read-only work",
        How::OnScreen { steps: &[Step { shows: &["building"], keys: "\u{3}" }], code: 0 },
    ),
    // ps, logs, kill, wait, resize
    ("remex ps", ends("build")),
    ("remex ps --all", ends("build")),
    ("remex ps --on build --json", ends("\"processes\":[")),
    ("remex ps -q --label team=web | xargs -r remex kill --tree", ends("")),
    ("remex ps --state failed --since 1h", ends("")),
    ("remex ps --label team=web --name 'build-*'", ends("")),
    ("remex inspect build", ends("state       running")),
    ("remex inspect build --json", ends("\"name\":\"build\"")),
    ("remex logs build", ends("building")),
    ("remex logs nightly", ends("building")),
    ("remex logs build --tail 20 --follow", goes_on("building")),
    ("remex logs build --since 10m --grep '(?i)error' --timestamps", ends("error: none so far")),
    ("remex logs build --grep error -i -C 2", ends("error: none so far")),
    ("remex logs build --since 06:00 --until 12:00", ends("")),
    ("remex logs --follow build lint", goes_on("lint  | building")),
    ("remex logs build --bytes -64K..", ends("building")),
    ("remex ps --all-envs", ends("local  build")),
    ("remex rm build", ends("removed `build` (it exited with code 0)")),
    ("remex rm build:notes.txt", ends("")),
    ("remex rm -r build:site", ends("")),
    ("remex prune", ends("removed `build` (it exited with code 0)")),
    ("remex prune --on build", ends("no exited processes")),
    ("remex gc --dry-run", How::Ends { code: 1, shows: "this server has no state directory" }),
    ("remex gc --older-than 7d", How::Ends { code: 1, shows: "this server has no state directory" }),
    (
        "remex gc --keep-bytes 1GiB --on build",
        How::Elsewhere("the environment has no state directory; `durable/collecting.rs` has one"),
    ),
    (
        "remex gc --state /var/lib/remex --older-than 30d",
        How::Elsewhere("it needs that directory; `durable/collecting.rs` has others"),
    ),
    ("remex server status", ends("1 running, 0 exited")),
    ("remex server status --json", ends("\"state\":\"running\"")),
    ("remex upgrade", How::Ends { code: 1, shows: "it has no state directory" }),
    (
        "remex upgrade --state /var/lib/remex",
        How::Elsewhere("tests/client/durable/restarts.rs upgrades such a server"),
    ),
    ("remex upgrade --on far", How::Elsewhere("no host is called so; tests/cli/ssh.rs has one")),
    ("remex server stop", How::Ends { code: 1, shows: "`build` (pid" }),
    ("remex server stop --force", ends("stopped your local remex server (pid")),
    (
        "remex server stop --state /var/lib/remex",
        How::Elsewhere("it needs that directory; tests/cli/stopping.rs has others"),
    ),
    (
        "remex server stop --state /var/lib/remex --all",
        How::Elsewhere("it needs that directory; tests/cli/stopping.rs has others"),
    ),
    ("remex server stop --on build --all", ends("the server itself runs on")),
    ("remex kill build --signal HUP", ends("")),
    ("remex kill -9 build", ends("sent SIGKILL to `build`")),
    ("remex kill build --tree", ends("")),
    ("remex kill nightly --tree", ends("ended `nightly` (pid")),
    ("remex kill build --tree --signal KILL", ends("")),
    ("remex kill --all --tree --yes --on build", ends("")),
    ("remex restart web", How::Elsewhere("no process is called so; tests/cli/restart.rs has others")),
    (
        "remex restart --grace 1m --on build worker",
        How::Elsewhere("no process is called so; tests/cli/restart.rs has others"),
    ),
    ("remex wait build", ends("")),
    ("remex wait build --timeout 5m", ends("")),
    ("remex wait build --timeout 1h --json", ends("\"version\":1")),
    ("remex resize build --rows 40 --cols 120", ends("")),
    // cp, ls, cat, edit, watch
    ("remex cp notes.txt build:", ends("")),
    ("remex cp site build:site-copy", ends("")),
    ("remex cp site/. build:site-copy", ends("")),
    ("remex cp build:app.tar gpu:app-of-build.tar", ends("")),
    ("remex cp --gitignore --exclude .git site/. build:site-copy", ends("")),
    ("remex cp --dry-run site notes.txt build:", ends("notes.txt")),
    ("remex cp --delete site/. build:site-copy", ends("")),
    ("remex cp --dry-run --delete site/. build:site-copy", ends("index.html")),
    ("remex mv build:notes.txt build:notes-2026.txt", ends("")),
    ("remex mv build:notes.txt build:site", ends("")),
    ("remex mkdir build:logs", ends("")),
    ("remex mkdir -p build:releases/2026/11", ends("")),
    ("remex ls build:", ends("notes.txt")),
    ("remex ls -l build:site", ends("index.html")),
    ("remex ls -lh build:site", ends("index.html")),
    ("remex ls --json build:site", ends("index.html")),
    ("remex cat build:notes.txt", ends("remember the milk")),
    ("remex cat notes.txt gpu:notes.txt", ends("remember the milk")),
    ("remex cat build:app.tar | tar -t", ends("site/index.html")),
    ("remex edit build:notes.txt", ends("")),
    ("EDITOR='sed -i s/old/new/' remex edit build:notes.txt", ends("")),
    (
        "remex watch build:site",
        How::GoesOn { nudge: "echo more >> ../build/site/index.html", shows: "index.html" },
    ),
    (
        "remex watch --flat --json build:site",
        How::GoesOn { nudge: "echo more >> ../build/site/index.html", shows: "index.html" },
    ),
    // http
    ("remex http --on build http://127.0.0.1:8080/health", How::Elsewhere(HTTP)),
    (
        "remex http --on build POST http://127.0.0.1:8080/jobs -H 'Content-Type: application/json' -d '{\"n\": 7}'",
        How::Elsewhere(HTTP),
    ),
    ("remex http --on build -f -o health.txt http://127.0.0.1:8080/health", How::Elsewhere(HTTP)),
    ("remex http --on build -i -L http://127.0.0.1:8080/health", How::Elsewhere(HTTP)),
    // top
    ("remex top", typed(&[Step { shows: &["building"], keys: "q" }])),
    ("remex top --on build --interval 5s", typed(&[Step { shows: &["q quit"], keys: "q" }])),
    ("remex top --all-envs --sort mem", typed(&[Step { shows: &["q quit"], keys: "q" }])),
    // mcp
    ("codex mcp add remex -- remex mcp", How::Elsewhere("tests/codex has Codex use it")),
    ("remex mcp --on build --on ssh://db.example", ends("")),
    ("remex mcp --allow read-files", ends("")),
    ("remex mcp --sandbox workspace-write", ends("")),
    (
        "remex mcp --listen 127.0.0.1:7080 --token-file ~/.config/remex/mcp-token",
        How::Elsewhere("the port may be taken; the tests of `remex-mcp` serve HTTP"),
    ),
    // proxy
    ("remex proxy < /dev/null", ends("")),
    // env
    ("remex env list", ends("gpu")),
    ("remex env list --json", ends("\"id\":\"gpu\"")),
    ("remex env add dev ws://127.0.0.1:7070", ends("added `dev`")),
    ("remex env add far -- ssh far.example remex proxy", ends("`ssh far.example remex proxy`")),
    (
        "remex env add vault wss://vault.example:7070 --ca certs/ca.pem --client-cert certs/me.pem --client-key certs/me.key",
        ends("added `vault`"),
    ),
    (
        "remex env add lab ws://lab.example:7070 --token-file token.txt --connect-timeout 5s",
        ends("added `lab`: ws://lab.example:7070"),
    ),
    (
        "remex env add far ssh://you@far.example --install",
        How::Elsewhere("it copies to another machine, which tests/cli/ssh.rs has"),
    ),
    ("remex env set gpu --connect-timeout 30s", ends("changed `gpu`: ws://")),
    (
        "remex env add build ssh://you@build.example --install",
        How::Elsewhere("it copies to another machine, which tests/cli/ssh.rs has"),
    ),
    (
        "remex env set far --install",
        How::Elsewhere("it copies to another machine, which tests/cli/ssh.rs has"),
    ),
    ("remex env set gpu ws://127.0.0.1:7071", ends("changed `gpu`: ws://127.0.0.1:7071")),
    ("remex env default build", ends("`build` is the default")),
    ("remex env default", ends("local")),
    ("remex env default --unset", ends("commands use this machine")),
    ("remex env test build", ends("ok       resume")),
    ("remex env test --all", ends("gpu: ws://")),
    ("remex env test build gpu --json", ends("\"ok\":true")),
    ("remex env remove gpu", ends("removed `gpu`")),
    // doctor
    ("remex doctor", ends("local server")),
    ("remex doctor --on build", ends("ok       round trip")),
    ("remex doctor --json", ends("\"ok\":true")),
    // completions and man
    ("echo '. <(remex completions bash)' >> ~/.bashrc", ends("")),
    ("remex completions zsh | install -Dm644 /dev/stdin ~/.zfunc/_remex", ends("")),
    ("remex completions fish | install -Dm644 /dev/stdin ~/.config/fish/completions/remex.fish", ends("")),
    ("remex man --dir ~/.local/share/man/man1", ends("")),
    ("remex man > remex.1", ends("")),
    // cert
    ("remex cert new server build.example 10.0.0.5", ends("made the CA certs/ca.pem")),
    ("remex cert new client ann", ends("made certs/ann.pem and certs/ann.key")),
    ("remex cert new client ci --spiffe spiffe://example.com/ci --days 30", ends("valid for 30 days")),
    // serve
    (
        "remex serve --listen wss://0.0.0.0:7070 --tls-cert certs/build.pem --tls-key certs/build.key --tls-client-ca certs/ca.pem",
        How::Elsewhere("its port may be taken; tests/cli/cert.rs serves with such files"),
    ),
    ("remex serve", goes_on("ws://127.0.0.1:")),
    ("remex serve --print-config > server.toml", ends("")),
    ("remex serve --config server.toml", goes_on("ws://127.0.0.1:")),
    ("remex serve --listen unix://$HOME/remex.sock", goes_on("/remex.sock")),
    (
        "remex serve --listen stdio",
        How::Elsewhere("it says nothing before its client does; tests/server/transports.rs speaks to it"),
    ),
    (
        "remex serve --listen ws://0.0.0.0:0 --ws-auth capability-token --ws-token-file token.txt",
        goes_on("ws://0.0.0.0:"),
    ),
    (
        "remex serve --listen ws://0.0.0.0:0 --ws-auth signed-bearer-token --ws-jwks-file jwks.json --ws-audience remex",
        goes_on("ws://0.0.0.0:"),
    ),
    // token
    ("remex token new --name ci --scope processes,files:read=/srv --expires 30d", ends("name=ci")),
    (
        "remex token show eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4iLCJleHAiOjE4OTM0NTYwMDB9.AA",
        ends("2030-01-01T00:00:00Z"),
    ),
    ("remex token show - < jwt.txt", ends("\"sub\": \"ann\"")),
    ("(umask 077 && remex token new > token.txt)", ends("clients present the token")),
    ("remex token new --name reader --scope files:read=/srv --expires 30d", ends("scope=files:read=/srv")),
    ("remex token new --secret-file secret.txt --subject ann --expires 8h", ends("eyJ")),
    ("remex token new --key key.pem --subject ann --audience remex --expires 8h", ends("eyJ")),
    (
        "(umask 077 && openssl genpkey -algorithm ed25519 -out key.pem)",
        How::Elsewhere("a host need not have openssl; tests/server/tokens.rs makes such a key"),
    ),
    ("remex token jwks key.pem > jwks.json", ends("")),
    (
        "remex serve --listen ws://127.0.0.1:7070 &",
        How::Elsewhere("its port is fixed; tests/codex runs the same with a free one"),
    ),
];

/// Lines of the documents that are no commands of ours, by how they begin, and why they are not run here.
pub(super) const ELSEWHERE: &[(&str, &str)] = &[
    ("cargo ", "whoever runs this test has just built the program and runs the tests"),
    ("CODEX_EXEC_SERVER_URL=", "tests/codex runs the real client"),
    ("codex ", "tests/codex has Codex use it"),
    ("claude ", "a host need not have this agent"),
    ("scripts/", "they build with the release profile for minutes"),
    ("systemctl ", "there is no systemd in a test; tests/cli/activation.rs passes the same sockets"),
    ("sudo ", "a test is no administrator"),
    ("mkdir ", "it prepares the installation of the units"),
    ("cp ", "it installs the units"),
    ("podman ", "there are no containers in a test"),
    ("rustup ", "it changes the toolchain of the machine"),
    ("tar ", "it unpacks what scripts/package has made"),
];
