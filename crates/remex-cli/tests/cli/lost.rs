//! A process that is lost with the keeper that ran it.

use std::process::Stdio;

use rustix::process::{Signal, kill_process};

use crate::{
    home::{Home, said},
    support::{InTime as _, Patient, Watched},
};

#[test]
fn a_process_lost_with_its_keeper_is_named_and_has_a_distinct_exit_code() {
    use std::io::BufRead as _;
    let home = Home::new();
    let args = ["run", "--detach", "--name", "work", "--", "sh", "-c", "echo $$; exec sleep 1000"];
    assert_eq!(home.say(&args).code, Some(0));
    let mut attached = home
        .remex(&["attach", "work"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = std::io::BufReader::new(Patient::new(attached.stdout.take().unwrap()));
    let mut pid = String::new();
    out.read_line(&mut pid).unwrap();
    let process = Watched::printed(pid.trim());
    let [keeper] = home.keepers()[..] else { panic!("there is one keeper") };
    kill_process(keeper, Signal::KILL).unwrap();
    let lost = said(&attached.finished());
    assert_eq!(lost.code, Some(123), "{lost:?}");
    assert!(lost.err.contains("remex: lost the process: its keeper was killed"), "{lost:?}");
    process.assert_ends();
    let waited = home.say(&["wait", "work"]);
    assert_eq!(waited.code, Some(123), "{waited:?}");
    assert!(waited.err.starts_with("remex: `work`: lost the process: "), "{waited:?}");
}
