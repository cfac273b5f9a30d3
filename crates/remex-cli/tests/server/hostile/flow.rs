//! Connections under attack: huge messages, floods and peers that never acknowledge.

mod huge;
mod overhead;
mod silent;

use std::fs;

use crate::support::Server;

/// Returns the CPU time that a server has used, in clock ticks of the system.
fn cpu_ticks(server: &Server) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.pid())).expect("the server runs");
    let (_, fields) = stat.rsplit_once(')').expect("the name of a process is in brackets");
    // From the state on, the third field of all: user time is the fourteenth.
    fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
}
