//! Compares the start and end of `/bin/true` with a bare `posix_spawn` and wait, in interleaved rounds.
//!
//! `cargo run --release -p remex-process --example measure`
#![allow(unsafe_code, clippy::print_stdout)]

use std::{
    error::Error,
    ffi::CString,
    path::PathBuf,
    ptr,
    time::{Duration, Instant},
};

use remex_process::{Rlimits, Size, Spawner, Start, Stdin, Stdio, Tags};

const ROUNDS: usize = 40;
const STARTS_PER_ROUND: usize = 50;

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
    };
    let pty = Stdio::Pty { size: Size { rows: 24, cols: 80 } };
    let mut figures: [(&str, Vec<Duration>); 5] = [
        ("posix_spawn, return", Vec::new()),
        ("posix_spawn, return and wait", Vec::new()),
        ("remex on pipes, start", Vec::new()),
        ("remex on pipes, start and wait", Vec::new()),
        ("remex on a terminal, start and wait", Vec::new()),
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
    }
    for (what, times) in &mut figures {
        times.sort();
        println!("{what:40} p50 {:?}  p90 {:?}", times[times.len() / 2], times[times.len() * 9 / 10]);
    }
    Ok(())
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
