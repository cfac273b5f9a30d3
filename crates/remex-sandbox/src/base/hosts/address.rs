//! How far an address reaches.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where packets to an address go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reach {
    /// To the internet.
    Public,
    /// To a network that the host is part of.
    Private,
    /// Nowhere beyond the host or its link, to no single host, or to the metadata service of a cloud.
    Local,
}

/// Addresses of metadata services that are not link-local: they give credentials of the host to anyone who asks.
const METADATA_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16)];
/// The IPv6 prefixes of metadata services.
const METADATA_V6: [&[u16]; 4] =
    [&[0xfd00, 0x0ec2], &[0xfd20, 0x00ce], &[0xfd00, 0x0042], &[0xfd00, 0xa9fe, 0xa9fe]];

impl Reach {
    pub(super) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => of_v4(address),
            IpAddr::V6(address) => of_v6(address),
        }
    }
}

fn of_v4(address: Ipv4Addr) -> Reach {
    let [a, b, c, _] = address.octets();
    let is_local = a == 0
        || a >= 224
        || address.is_loopback()
        || address.is_link_local()
        || (a, b, c) == (192, 0, 0)
        || METADATA_V4.contains(&address);
    let is_shared = a == 100 && (64..128).contains(&b);
    let is_benchmark = a == 198 && (18..20).contains(&b);
    if is_local {
        Reach::Local
    } else if address.is_private() || is_shared || is_benchmark {
        Reach::Private
    } else {
        Reach::Public
    }
}

fn of_v6(address: Ipv6Addr) -> Reach {
    let segments = address.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        of_v4(Ipv4Addr::new(a, b, c, d))
    };
    match segments {
        // Unspecified, loopback, and IPv4 addresses in an obsolete form.
        [0, 0, 0, 0, 0, 0, _, _] => Reach::Local,
        _ if METADATA_V6.iter().any(|start| segments.starts_with(start)) => Reach::Local,
        // Gateways turn these into the IPv4 addresses that they contain.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        [0x64, 0xff9b, 1, ..] => Reach::Private,
        [0x2002, high, low, ..] => v4(high, low),
        // Tunnels through IPv4 servers that the address chooses.
        [0x2001, 0, ..] => Reach::Local,
        // Link-local, and multicast.
        [first, ..] if first & 0xffc0 == 0xfe80 || first & 0xff00 == 0xff00 => Reach::Local,
        // Unique local, and what came before it.
        [first, ..] if first & 0xfe00 == 0xfc00 || first & 0xffc0 == 0xfec0 => Reach::Private,
        // Only this eighth is assigned to the internet.
        [first, ..] if first & 0xe000 == 0x2000 => Reach::Public,
        _ => Reach::Local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_classified_by_their_reach() {
        for (reach, addresses) in [
            (
                Reach::Public,
                "1.1.1.1 93.184.216.34 172.32.0.1 192.0.2.1 100.128.0.1 198.20.0.1 2606:4700::1111 64:ff9b::101:101",
            ),
            (
                Reach::Private,
                "10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1 198.18.0.1 fc00::1 fdff::1 fec0::1 \
                 ::ffff:10.0.0.1 64:ff9b::a00:1 2002:c0a8:101::1 64:ff9b:1::1",
            ),
            (
                Reach::Local,
                "0.0.0.0 0.1.2.3 127.0.0.1 127.255.255.254 169.254.169.254 224.0.0.1 255.255.255.255 240.0.0.1 192.0.0.8 \
                 100.100.100.200 168.63.129.16 :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 fe80::1 \
                 febf::1 ff02::1 fd00:ec2::254 fd00:ec2::23 fd20:ce::254 fd00:42::42 fd00:a9fe:a9fe::1 64:ff9b::a9fe:a9fe 2002:7f00:1::1 2001::1 4000::1 100::1",
            ),
        ] {
            for address in addresses.split_whitespace() {
                assert_eq!(Reach::of(address.parse().unwrap()), reach, "{address}");
            }
        }
    }
}
