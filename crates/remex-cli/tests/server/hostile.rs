//! What a hostile or broken neighbour can do: limits that are reached, file systems that hang, peers that are silent for
//! good, and single messages as large as the caps allow.

mod files;
mod flow;
mod kills;
mod memory;
mod orphans;
mod process_limit;
mod processes;
mod starts;
