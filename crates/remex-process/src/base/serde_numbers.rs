//! Serializes signals, pids and tags as plain numbers. Deserializing a number that stands for none of them is an error.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{Pid, Signal, Tag, Tags};

/// Implements `Serialize` and `Deserialize` for a type that converts to a number and, if the number is valid, back.
macro_rules! serialize_as_number {
    ($type:ty, $what:literal, $number:ty, $to_number:expr, $from_number:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let number: $number = $to_number(self);
                number.serialize(serializer)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let number = <$number>::deserialize(deserializer)?;
                $from_number(number).ok_or_else(|| D::Error::custom(format!("{number} is not {}", $what)))
            }
        }
    };
}

serialize_as_number!(Pid, "the pid of a process", i32, |pid: &Self| pid.as_raw(), Self::new);
serialize_as_number!(Signal, "a signal", i32, |signal: &Self| signal.number(), Self::from_number);
serialize_as_number!(Tag, "the tag of a start", u64, |tag: &Self| tag.limit(), start_tag);
serialize_as_number!(Tags, "the number of a server", u64, Self::number, Self::from_number);

/// Returns the tag in a limit, unless it is that of watchdogs, which no kill may hit.
fn start_tag(limit: u64) -> Option<Tag> {
    Tag::from_limit(limit).filter(|tag| !tag.same_server(Tag::WATCHDOG))
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde::de::DeserializeOwned;

    use super::*;

    /// Returns a value after serializing and deserializing it, as another process receives it.
    fn travelled<T: Serialize + DeserializeOwned>(value: &T) -> T {
        postcard::from_bytes(&postcard::to_stdvec(value).unwrap()).unwrap()
    }

    fn refused<T: DeserializeOwned + Debug>(number: impl Serialize + Debug) {
        let sent = postcard::to_stdvec(&number).unwrap();
        let received = postcard::from_bytes::<T>(&sent);
        assert!(received.is_err(), "{number:?} became {received:?}");
    }

    #[test]
    fn every_signal_round_trips_and_other_numbers_are_refused() {
        for signal in (1..=libc::SIGRTMAX()).filter_map(Signal::from_number) {
            assert_eq!(travelled(&signal), signal);
        }
        [i32::MIN, -1, 0, 65, i32::MAX].into_iter().for_each(refused::<Signal>);
    }

    #[test]
    fn a_pid_that_signals_must_not_address_is_refused() {
        let pid = Pid::new(i32::MAX).unwrap();
        assert_eq!(travelled(&pid), pid);
        [i32::MIN, -7, 0, 1].into_iter().for_each(refused::<Pid>);
    }

    #[test]
    fn server_tags_round_trip_and_watchdog_tags_are_refused() {
        let tags = Tags::new();
        for tag in [tags.tag(0, 0), tags.tag(u32::MAX, 7), tags.tag(1, 2).of_init()] {
            assert_eq!(travelled(&tag), tag);
        }
        assert_eq!(travelled(&tags), tags);
        let watchdog = Tag::WATCHDOG.limit();
        [0, 1024, u64::MAX, watchdog, watchdog | 9].into_iter().for_each(refused::<Tag>);
        [1 << 21, u64::MAX].into_iter().for_each(refused::<Tags>);
    }
}
