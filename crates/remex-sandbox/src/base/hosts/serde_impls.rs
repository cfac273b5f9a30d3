//! Serializes lists of hosts: each entry as its text, which is parsed again.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{HostList, HostPattern, Hosts};

impl Serialize for HostPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HostPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl Serialize for Hosts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.lists.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Hosts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let lists = Vec::<HostList>::deserialize(deserializer)?;
        // Every list must allow a host, so none would allow all of them.
        if lists.is_empty() { Err(D::Error::custom("there is no list of hosts")) } else { Ok(Self { lists }) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_entry_round_trips_as_text(
            subject in prop_oneof![
                Just("*".to_owned()),
                r"(\*{1,2}\.)?[A-Za-z0-9_-]{1,6}(\.[a-zA-Z]{1,3}){0,3}\.?",
                r"([0-9]{1,3}\.){3}[0-9]{1,3}",
                r"\[[0-9a-f:.]{2,20}\]",
            ],
            port in prop::option::of(any::<u16>()),
        ) {
            let text = port.map_or(subject.clone(), |port| format!("{subject}:{port}"));
            let Ok(entry) = text.parse::<HostPattern>() else { return Ok(()) };
            let sent = postcard::to_stdvec(&entry).unwrap();
            prop_assert_eq!(postcard::from_bytes::<HostPattern>(&sent).unwrap(), entry);
        }

        #[test]
        fn every_address_round_trips_as_text(address: std::net::IpAddr) {
            let text = crate::HostName::from(address).to_string();
            let entry: HostPattern = text.parse().unwrap();
            let sent = postcard::to_stdvec(&entry).unwrap();
            prop_assert_eq!(postcard::from_bytes::<HostPattern>(&sent).unwrap(), entry);
        }
    }

    #[test]
    fn an_invalid_host_is_an_error() {
        for text in ["", "*.", "a b", "1.2.3", "a:0"] {
            let sent = postcard::to_stdvec(text).unwrap();
            assert!(postcard::from_bytes::<HostPattern>(&sent).is_err(), "{text}");
        }
        assert!(postcard::from_bytes::<Hosts>(&[0]).is_err());
    }
}
