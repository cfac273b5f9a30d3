//! The addresses of a name, and of no other name.
//!
//! The resolver of the host would also try the name with each domain of its search list, and so lead to hosts that no
//! list allows. So names are asked for in their complete form, with a dot at the end, after the host's own table.

use std::{
    fs::File,
    io::{self, Read as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs as _},
};

use super::outgoing::MAX_ADDRESSES;

const TABLE: &str = "/etc/hosts";
/// More of the table is not read.
const MAX_TABLE: u64 = 4 << 20;

/// Looks up a name. Blocks for as long as the name servers take.
pub(super) fn addresses_of(name: &str) -> io::Result<Vec<IpAddr>> {
    let mut table = Vec::new();
    // Without a table, names are asked for.
    if let Ok(file) = File::open(TABLE) {
        file.take(MAX_TABLE).read_to_end(&mut table)?;
    }
    let mut found = listed(&String::from_utf8_lossy(&table), name);
    if found.is_empty() && name == "localhost" {
        found = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    }
    if found.is_empty() {
        let answers = (format!("{name}."), 0).to_socket_addrs()?;
        found = answers.map(|address| address.ip()).collect();
    }
    found.truncate(MAX_ADDRESSES);
    Ok(found)
}

/// Returns the addresses that the table of the host has for a name.
fn listed(table: &str, name: &str) -> Vec<IpAddr> {
    let entry = |line: &str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
    };
    table.lines().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_file_is_parsed_as_usual() {
        let table = "# 1.1.1.1 a\n127.0.0.1\tlocalhost a.example # b.example\n::1 localhost\n10.0.0.1 A.example\nnonsense c\n";
        let found = |name| listed(table, name).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(found("localhost"), ["127.0.0.1", "::1"]);
        assert_eq!(found("a.example"), ["127.0.0.1", "10.0.0.1"]);
        assert!(found("b.example").is_empty() && found("a").is_empty() && found("c").is_empty());
    }

    #[test]
    fn the_local_host_has_its_name() {
        assert!(addresses_of("localhost").unwrap().iter().all(IpAddr::is_loopback));
    }
}
