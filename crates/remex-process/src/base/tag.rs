//! A marker inherited by every descendant of a start.
//!
//! It is stored in the soft limit on file locks, a resource limit that Linux no longer uses, or in another one if the
//! hard limit is too low (`tag_limit.rs`). It protects against accidents; a hostile program can change it.

use std::hash::{BuildHasher, Hasher, RandomState};

const PART_BITS: u32 = 20;
const PART_MASK: u64 = (1 << PART_BITS) - 1;
/// Always set, so that a tag is not mistaken for a limit that a person has chosen.
const MARK: u64 = 1 << 62;
/// Set for the first process of a jail, whose end is the end of all others there.
const INIT: u64 = 1 << 61;
/// The number of servers that tags can distinguish. The next number marks all watchdogs.
const SERVERS: u64 = (INIT >> (2 * PART_BITS)) - 1;

/// Marks one start, and with it all its descendants.
///
/// 21 bits identify the server, 20 the session, 20 the process; one marks the first process of a jail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(u64);

/// Creates the tags of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tags {
    server: u64,
}

impl Tags {
    /// Chooses the random number that identifies the tags of this server.
    #[must_use]
    pub fn new() -> Self {
        // The standard library seeds its hashers from the kernel; the number is not a secret.
        let random = RandomState::new().build_hasher().finish();
        Self::from_number(random % SERVERS).expect("the remainder is a number of a server")
    }

    /// Returns the number that identifies the tags of this server.
    #[must_use]
    pub fn number(&self) -> u64 {
        (self.server & !MARK) >> (2 * PART_BITS)
    }

    /// Restores the tags of the server with this number, or returns `None` if no server has it.
    ///
    /// A process that continues the work of another one creates the same tags, and finds what the other has started.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        (number < SERVERS).then_some(Self { server: number << (2 * PART_BITS) | MARK })
    }

    /// Returns the tag of one process; only the lower 20 bits of both numbers count.
    #[must_use]
    pub fn tag(&self, session: u32, process: u32) -> Tag {
        let part = |number: u32| u64::from(number) & PART_MASK;
        Tag(self.server | part(session) << PART_BITS | part(process))
    }
}

impl Default for Tags {
    /// The same as [`Tags::new`]: the number is random.
    fn default() -> Self {
        Self::new()
    }
}

impl Tag {
    /// The largest number of a session that a tag can hold.
    pub const LARGEST_SESSION: u32 = PART_MASK as u32;

    /// Returns the number of the session, modulo 2^20.
    #[must_use]
    pub fn session(self) -> u32 {
        (self.0 >> PART_BITS & PART_MASK) as u32
    }

    /// Returns the number of the process in its session, modulo 2^20.
    #[must_use]
    pub fn process(self) -> u32 {
        (self.0 & PART_MASK) as u32
    }

    /// The tag of every [`Watchdog`](crate::Watchdog): it belongs to no server, and no kill may hit it.
    pub(crate) const WATCHDOG: Self = Self(SERVERS << (2 * PART_BITS) | MARK);

    pub(crate) fn same_session(self, other: Self) -> bool {
        self.of_start().0 >> PART_BITS == other.of_start().0 >> PART_BITS
    }

    pub(crate) fn same_server(self, other: Self) -> bool {
        self.of_start().0 >> (2 * PART_BITS) == other.of_start().0 >> (2 * PART_BITS)
    }

    /// Returns the tag of the first process of a jail, for the start with this tag.
    pub(crate) fn of_init(self) -> Self {
        Self(self.0 | INIT)
    }

    /// Returns the tag of the start, for any of its processes.
    pub(crate) fn of_start(self) -> Self {
        Self(self.0 & !INIT)
    }

    /// Returns whether this is the tag of the first process of a jail.
    pub(crate) fn is_init(self) -> bool {
        self.0 & INIT != 0
    }

    /// The highest limit that a tag can occupy.
    pub(crate) const LARGEST_LIMIT: u64 = (MARK << 1) - 1;

    /// Returns the tag in a limit, if it is a tag of any server.
    pub(crate) fn from_limit(limit: u64) -> Option<Self> {
        (MARK..MARK << 1).contains(&limit).then_some(Self(limit))
    }

    pub(crate) fn limit(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_keeps_its_parts_apart() {
        let tags = Tags::new();
        let tag = tags.tag(0x000f_ffff, 0);
        assert_eq!((tag.session(), tag.process()), (0x000f_ffff, 0));
        let tag = tags.tag(0, 0x000f_ffff);
        assert_eq!((tag.session(), tag.process()), (0, 0x000f_ffff));
        assert!(tags.tag(1, 2).same_session(tags.tag(1, 3)));
        assert!(!tags.tag(1, 2).same_session(tags.tag(2, 2)));
        assert!(tags.tag(1, 2).same_server(tags.tag(2, 3)));
    }

    #[test]
    fn tags_are_restored_by_their_number() {
        let tags = Tags::new();
        let restored = Tags::from_number(tags.number()).unwrap();
        assert_eq!((&restored, restored.tag(3, 4)), (&tags, tags.tag(3, 4)));
        for number in [0, 1, SERVERS - 1] {
            assert_eq!(Tags::from_number(number).unwrap().number(), number);
        }
        for number in [SERVERS, SERVERS + 1, MARK, u64::MAX] {
            assert_eq!(Tags::from_number(number), None);
        }
    }

    #[test]
    fn numbers_that_are_too_large_do_not_change_other_parts() {
        let tags = Tags::new();
        assert_eq!(tags.tag(u32::MAX, u32::MAX), tags.tag(0x000f_ffff, 0x000f_ffff));
    }

    #[test]
    fn the_first_process_of_a_jail_belongs_to_its_start() {
        let tag = Tags::new().tag(7, 9);
        let init = tag.of_init();
        assert!(init.is_init() && !tag.is_init() && !Tag::WATCHDOG.is_init());
        assert_eq!((init.of_start(), init.session(), init.process()), (tag, 7, 9));
        assert!(init.same_server(tag) && tag.same_session(init));
        assert_eq!(Tag::from_limit(init.limit()), Some(init));
    }

    #[test]
    fn a_watchdog_belongs_to_no_server() {
        let last = Tags::from_number(SERVERS - 1).unwrap();
        assert!(!last.tag(0, 0).same_server(Tag::WATCHDOG));
        assert_eq!(Tag::from_limit(Tag::WATCHDOG.limit()), Some(Tag::WATCHDOG));
    }

    #[test]
    fn a_tag_is_recognised_among_limits_and_no_common_limit_is_a_tag() {
        let tag = Tags::new().tag(7, 9);
        assert_eq!(Tag::from_limit(tag.limit()), Some(tag));
        for limit in [0, 1024, u64::from(u32::MAX), i64::MAX as u64 + 1, u64::MAX] {
            assert_eq!(Tag::from_limit(limit), None);
        }
    }
}
