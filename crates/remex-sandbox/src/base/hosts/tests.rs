use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

fn hosts(allow: &[&str]) -> Hosts {
    HostList::parse(allow.iter().copied(), []).unwrap().into()
}

fn name(text: &str) -> HostName {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn allows(hosts: &Hosts, host: &str, port: u16) -> bool {
    hosts.check_name(&name(host), port).is_ok()
}

fn reaches(hosts: &Hosts, host: &str, address: &str) -> Result<(), HostDenial> {
    hosts.check_address(&name(host), 443, address.parse().unwrap(), false)
}

#[test]
fn name_matching_ignores_case_and_a_final_dot() {
    let list = hosts(&["Git.Example.COM", "api.example.net.:8443"]);
    for host in ["git.example.com", "GIT.EXAMPLE.com.", "git.example.com."] {
        assert!(allows(&list, host, 443) && allows(&list, host, 22), "{host}");
    }
    assert!(allows(&list, "api.example.net", 8443) && !allows(&list, "api.example.net", 443));
    for host in
        ["example.com", "x.git.example.com", "git.example.com.evil.org", "xgit.example.com", "1.1.1.1"]
    {
        assert!(!allows(&list, host, 443), "{host}");
    }
}

#[test]
fn a_star_covers_subdomains_at_any_depth_but_not_the_domain() {
    let list = hosts(&["*.example.org", "**.example.net"]);
    for host in ["a.example.org", "a.b.c.example.org", "A.EXAMPLE.ORG.", "example.net", "a.example.net"] {
        assert!(allows(&list, host, 1), "{host}");
    }
    for host in ["example.org", "badexample.org", "badexample.net", "example.org.evil.com", "org", "10.0.0.1"]
    {
        assert!(!allows(&list, host, 1), "{host}");
    }
    assert!(allows(&hosts(&["*"]), "anything.example", 9) && allows(&hosts(&["*:9"]), "8.8.8.8", 9));
    assert!(!allows(&hosts(&["*:9"]), "8.8.8.8", 10));
}

#[test]
fn every_address_of_the_servers_own_host_needs_an_entry_for_itself() {
    let reaches = |allow: &[&str], address: &str| {
        let address = address.parse().unwrap();
        hosts(allow).check_address(&name("a.example"), 443, address, true)
    };
    for address in ["93.184.216.34", "10.0.0.1", "fd00::2", "127.0.0.1"] {
        let denied = Err(HostDenial::Local(address.parse().unwrap()));
        assert_eq!(reaches(&["*"], address), denied);
        assert_eq!(reaches(&["a.example"], address), denied);
        let literal = HostName::Address(address.parse().unwrap()).to_string();
        assert_eq!(reaches(&["a.example", &literal], address), Ok(()));
    }
    assert!(hosts(&["a.example", "localhost:80"]).name_loopback() && hosts(&["[::1]"]).name_loopback());
    assert!(!hosts(&["*", "**.localhost", "10.0.0.1"]).name_loopback());
}

#[test]
fn a_denied_host_stays_denied_whatever_else_is_listed() {
    let list: Hosts =
        HostList::parse(["*", "10.0.0.1"], ["bad.example.com", "*.evil.org", "10.0.0.1"]).unwrap().into();
    assert!(allows(&list, "example.com", 1) && allows(&list, "evil.org", 1));
    assert!(!allows(&list, "bad.example.com", 1) && !allows(&list, "a.evil.org", 1));
    assert_eq!(reaches(&list, "example.com", "10.0.0.1"), Err(HostDenial::Listed));
}

#[test]
fn a_name_never_resolves_to_an_address_that_its_entry_does_not_cover() {
    let list = hosts(&["*.example.org", "internal.example.com", "10.1.2.3", "127.0.0.1", "localhost"]);
    let private = |address: &str| Err(HostDenial::Private(address.parse().unwrap()));
    let local = |address: &str| Err(HostDenial::Local(address.parse().unwrap()));
    assert_eq!(reaches(&list, "a.example.org", "93.184.216.34"), Ok(()));
    // Rebinding: the names of others must not lead inside.
    assert_eq!(reaches(&list, "a.example.org", "10.0.0.1"), private("10.0.0.1"));
    assert_eq!(reaches(&list, "a.example.org", "169.254.169.254"), local("169.254.169.254"));
    assert_eq!(reaches(&list, "a.example.org", "::ffff:169.254.169.254"), local("169.254.169.254"));
    assert_eq!(reaches(&list, "a.example.org", "127.0.0.2"), local("127.0.0.2"));
    assert_eq!(reaches(&list, "internal.example.com", "10.0.0.1"), Ok(()));
    assert_eq!(reaches(&list, "internal.example.com", "169.254.169.254"), local("169.254.169.254"));
    assert_eq!(reaches(&list, "internal.example.com", "::1"), local("::1"));
    assert_eq!(reaches(&list, "10.1.2.3", "10.1.2.3"), Ok(()));
    assert_eq!(reaches(&list, "127.0.0.1", "127.0.0.1"), Ok(()));
    assert_eq!(reaches(&list, "[::ffff:127.0.0.1]", "127.0.0.1"), Ok(()));
    assert_eq!(reaches(&list, "localhost", "127.0.0.9"), Ok(()));
    assert_eq!(reaches(&list, "localhost", "10.0.0.9"), Ok(()));
    assert_eq!(reaches(&list, "localhost", "169.254.169.254"), local("169.254.169.254"));
    assert_eq!(reaches(&list, "evil.com", "93.184.216.34"), Err(HostDenial::NotListed));
    assert_eq!(reaches(&hosts(&["*"]), "127.0.0.1", "127.0.0.1"), local("127.0.0.1"));
    assert_eq!(reaches(&hosts(&["*"]), "[fe80::1]", "fe80::1"), local("fe80::1"));
}

#[test]
fn two_lists_allow_what_both_allow() {
    let client = hosts(&["*", "internal.example.com", "10.0.0.7"]);
    let both = client.narrow(&hosts(&["*.example.com", "10.0.0.0"]));
    assert!(allows(&both, "a.example.com", 1) && !allows(&both, "a.example.org", 1));
    // Each list must name it exactly.
    assert!(reaches(&client, "internal.example.com", "10.0.0.1").is_ok());
    assert!(reaches(&both, "internal.example.com", "10.0.0.1").is_err());
    assert_eq!(client.narrow(&client), client);
    assert!(!allows(&both.narrow(&HostList::default().into()), "a.example.com", 1));
}

#[test]
fn one_more_entry_is_for_exactly_this_host_and_changes_no_denial() {
    let list = HostList::parse(["a.org"], ["*.bad.org", "10.0.0.8"]).unwrap();
    let with = |host: &str| Hosts::from(list.with(&name(host), 443));
    let more = with("internal.example.com");
    assert!(allows(&more, "internal.example.com", 443) && allows(&more, "a.org", 1));
    assert!(!allows(&more, "internal.example.com", 80) && !allows(&more, "x.internal.example.com", 443));
    assert!(reaches(&more, "internal.example.com", "10.0.0.7").is_ok());
    assert_eq!(reaches(&more, "internal.example.com", "10.0.0.8"), Err(HostDenial::Listed));
    let local = "127.0.0.1".parse().unwrap();
    assert_eq!(reaches(&more, "internal.example.com", "127.0.0.1"), Err(HostDenial::Local(local)));
    assert!(!allows(&with("x.bad.org"), "x.bad.org", 443));
}

#[test]
fn an_invalid_entry_is_refused_with_the_reason() {
    let long = format!("{}.org", "a".repeat(64));
    let longer = ["abcdefghi."; 26].concat();
    for (entry, why) in [
        ("", NameError::Empty),
        (".", NameError::Empty),
        (":443", NameError::Empty),
        ("*.", NameError::Empty),
        ("a..b", NameError::Character),
        (".example.org", NameError::Character),
        ("exam*ple.org", NameError::Character),
        ("*.*.example.org", NameError::Character),
        ("a.*.org", NameError::Character),
        ("user@example.org", NameError::Character),
        ("example.org/path", NameError::Character),
        ("ex%61mple.org", NameError::Character),
        ("a b", NameError::Character),
        ("https://example.org", NameError::Port),
        ("bücher.example", NameError::International),
        ("example。org", NameError::International),
        (&long, NameError::TooLong),
        (&longer, NameError::TooLong),
        ("2130706433", NameError::OddAddress),
        ("0x7f000001", NameError::OddAddress),
        ("0X7F.1", NameError::OddAddress),
        ("0177.0.0.1", NameError::OddAddress),
        ("127.1", NameError::OddAddress),
        ("127.0.0.1.", NameError::OddAddress),
        ("1.2.3.4.5", NameError::OddAddress),
        ("127.0.0.0x1", NameError::OddAddress),
        ("::1", NameError::Brackets),
        ("[::1", NameError::Brackets),
        ("[::1]x", NameError::Brackets),
        ("[fe80::1%25eth0]", NameError::Brackets),
        ("[127.0.0.1]", NameError::Brackets),
        ("*.10.0.0.1", NameError::BelowAddress),
        ("a.org:", NameError::Port),
        ("a.org:0", NameError::Port),
        ("a.org:+80", NameError::Port),
        ("a.org:65536", NameError::Port),
        ("a.org:http", NameError::Port),
    ] {
        let refused = entry.parse::<HostPattern>().map_err(|error| error.why);
        assert_eq!(refused, Err(why), "{entry}");
    }
    let many = HostList::parse(vec!["a.org"; MAX_ENTRIES + 1], []).unwrap_err();
    assert_eq!(many.to_string(), "`a.org` is not a host: the list has more than 1024 entries");
    assert!("x".repeat(1000).parse::<HostPattern>().unwrap_err().entry.len() < 200);
}

#[test]
fn a_host_with_a_port_is_parsed_as_clients_write_it() {
    let parse = |text| HostName::parse_with_port(text, None).map(|(host, port)| (host.to_string(), port));
    assert_eq!(parse("Example.ORG.:443"), Ok(("example.org".to_owned(), 443)));
    assert_eq!(parse("[::FFFF:1.2.3.4]:80"), Ok(("1.2.3.4".to_owned(), 80)));
    assert_eq!(parse("[2001:DB8::1]:80"), Ok(("[2001:db8::1]".to_owned(), 80)));
    assert_eq!(parse("example.org"), Err(NameError::Port));
    assert_eq!(parse("user@example.org:443"), Err(NameError::Character));
    assert_eq!(parse("good.org:80@evil.org:443"), Err(NameError::Brackets));
}

fn label() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9-]{0,8}"
}

proptest! {
    #[test]
    fn displayed_hosts_parse_back(
        labels in prop::collection::vec(label(), 1..5),
        prefix in prop::sample::select(vec!["", "*.", "**."]),
        port in prop::option::of(1..=u16::MAX),
    ) {
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let text = format!("{prefix}{}{port}", labels.join("."));
        let pattern: HostPattern = text.parse().unwrap();
        prop_assert_eq!(pattern.to_string(), text);
    }

    #[test]
    fn no_text_panics_and_every_host_has_one_form(text in any::<String>()) {
        let _ = text.parse::<HostPattern>();
        if let Ok(host) = text.parse::<HostName>() {
            prop_assert_eq!(host.to_string().parse::<HostName>(), Ok(host.clone()));
            prop_assert_eq!(text.to_uppercase().parse::<HostName>(), Ok(host));
        }
    }

    #[test]
    fn a_pattern_alone_never_allows_a_private_address(bits in any::<u32>(), wide in any::<u128>(), domain in label()) {
        let list = hosts(&["*", "*.org", "**.net"]);
        for address in [IpAddr::V4(bits.into()), IpAddr::V6(wide.into())] {
            let is_public = Reach::of(address) == Reach::Public;
            let host = format!("{domain}.org");
            prop_assert_eq!(reaches(&list, &host, &address.to_string()).is_ok(), is_public);
        }
    }

    #[test]
    fn a_floor_only_restricts(
        labels in prop::collection::vec(label(), 1..4),
        ours in prop::collection::vec(label(), 1..3),
        floors in prop::collection::vec(label(), 1..3),
    ) {
        let host = labels.join(".");
        let entries = |domains: &[String]| {
            let below: Vec<_> = domains.iter().map(|domain| format!("**.{domain}")).collect();
            Hosts::from(HostList::parse(below.iter().map(String::as_str), []).unwrap())
        };
        let (own, floor) = (entries(&ours), entries(&floors));
        let both = allows(&own, &host, 1) && allows(&floor, &host, 1);
        prop_assert_eq!(allows(&own.narrow(&floor), &host, 1), both);
    }
}
