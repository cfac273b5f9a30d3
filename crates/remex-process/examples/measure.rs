//! Compares the start and end of `/bin/true`, unconfined and confined, with a bare `posix_spawn` and wait, in
//! interleaved rounds; then the starts with many open descriptors, as a server with thousands of processes has.
//!
//! `cargo run --release -p remex-process --example measure`
#![allow(unsafe_code, clippy::print_stdout)]

use std::{
    error::Error,
    ffi::CString,
    fs::File,
    path::PathBuf,
    ptr,
    sync::Arc,
    time::{Duration, Instant},
};

use remex_process::{Jail, Rlimits, Size, Spawner, Start, Stdin, Stdio, Tags};
use remex_sandbox::{Network, Policy, Preset, Request, SystemHost, resolve, testing::context};

const ROUNDS: usize = 40;
const STARTS_PER_ROUND: usize = 50;

/// Those of about 6,000 processes.
const DESCRIPTORS: usize = 30_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let spawner = Spawner::new(2)?;
    let tags = Tags::new();
    let start = |stdio| Start {
        program: "/bin/true".into(),
        arg0: None,
        args: Vec::new(),
        cwd: PathBuf::from("/"),
        env: Vec::new(),
        stdio,
        tag: tags.tag(1, 1),
        parent_death: None,
        rlimits: Rlimits::default(),
        cgroup: None,
        jail: None,
        user: None,
    };
    let pty = Stdio::Pty { size: Size { rows: 24, cols: 80 } };
    let jails = [
        Jail::pids_only(),
        Jail::new(Arc::new(Policy::open(Network::Enabled)), Arc::new([])),
        Jail::new(Arc::new(workspace()), Arc::new([])),
    ];
    let mut figures: [(&str, Vec<Duration>); 11] = [
        ("posix_spawn, return", Vec::new()),
        ("posix_spawn, return and wait", Vec::new()),
        ("remex on pipes, start", Vec::new()),
        ("remex on pipes, start and wait", Vec::new()),
        ("remex on a terminal, start and wait", Vec::new()),
        ("own pids, start", Vec::new()),
        ("own pids, start and wait", Vec::new()),
        ("confined with network, start", Vec::new()),
        ("confined with network, start and wait", Vec::new()),
        ("workspace-write, start", Vec::new()),
        ("workspace-write, start and wait", Vec::new()),
    ];
    for _ in 0..ROUNDS {
        for _ in 0..STARTS_PER_ROUND {
            let (started, ended) = bare();
            figures[0].1.push(started);
            figures[1].1.push(ended);
        }
        for _ in 0..STARTS_PER_ROUND {
            let began = Instant::now();
            let mut child = spawner.start(start(Stdio::Pipes { stdin: Stdin::Null })).await?;
            figures[2].1.push(began.elapsed());
            child.exit.wait().await;
            figures[3].1.push(began.elapsed());
        }
        for _ in 0..STARTS_PER_ROUND {
            let began = Instant::now();
            spawner.start(start(pty)).await?.exit.wait().await;
            figures[4].1.push(began.elapsed());
        }
        for (number, jail) in jails.iter().enumerate() {
            for _ in 0..STARTS_PER_ROUND {
                let began = Instant::now();
                let start = Start { jail: Some(jail.clone()), ..start(Stdio::Pipes { stdin: Stdin::Null }) };
                let mut child = spawner.start(start).await?;
                figures[5 + 2 * number].1.push(began.elapsed());
                child.exit.wait().await;
                figures[6 + 2 * number].1.push(began.elapsed());
            }
        }
    }
    for (what, times) in &mut figures {
        print(what, times);
    }
    remex_process::raise_file_limit();
    let null = File::open("/dev/null")?;
    let open = (0..DESCRIPTORS).map(|_| null.try_clone()).collect::<Result<Vec<_>, _>>();
    let open = open.map_err(|error| format!("cannot open {DESCRIPTORS} descriptors: {error}"))?;
    let start = start(Stdio::Pipes { stdin: Stdin::Null });
    for (what, jail) in
        [("on pipes", None), ("own pids", Some(&jails[0])), ("workspace-write", Some(&jails[2]))]
    {
        let mut times = Vec::new();
        for _ in 0..10 * STARTS_PER_ROUND {
            let began = Instant::now();
            let mut child = spawner.start(Start { jail: jail.cloned(), ..start.clone() }).await?;
            times.push(began.elapsed());
            child.exit.wait().await;
        }
        print(&format!("{what}, start, {} open", open.len()), &mut times);
    }
    Ok(())
}

fn print(what: &str, times: &mut [Duration]) {
    times.sort();
    let at = |percent: usize| times[times.len() * percent / 100];
    println!("{what:40} p10 {:?}  p50 {:?}  p90 {:?}", at(10), at(50), at(90));
}

/// The profile that clients use most.
fn workspace() -> Policy {
    let root = std::env::temp_dir();
    let mut context = context(Vec::new(), Some(vec![root.into()]));
    context.permissions = Preset::WorkspaceWrite.permissions();
    resolve(&Request { context: &context, cwd: None, tmpdir: None }, &SystemHost).expect("it can be resolved")
}

/// Returns when the call was over, and when the child was.
fn bare() -> (Duration, Duration) {
    let path = CString::new("/bin/true").expect("no NUL byte");
    let argv = [path.as_ptr().cast_mut(), ptr::null_mut()];
    let env = [ptr::null_mut()];
    let mut pid = 0;
    let mut status = 0;
    let began = Instant::now();
    // SAFETY: the strings end with NUL, the arrays with a null pointer, and all outlive the calls.
    unsafe {
        let result = libc::posix_spawn(
            &raw mut pid,
            path.as_ptr(),
            ptr::null(),
            ptr::null(),
            argv.as_ptr(),
            env.as_ptr(),
        );
        assert_eq!(result, 0, "posix_spawn failed");
        let started = began.elapsed();
        libc::waitpid(pid, &raw mut status, 0);
        (started, began.elapsed())
    }
}
