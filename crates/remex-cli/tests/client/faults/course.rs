//! What goes wrong with one connection.

use std::time::Duration;

use super::chance::Chance;

/// No connection carries more than this before its fault comes.
const LATEST_FAULT: u64 = 1 << 20;

/// How a connection goes.
#[derive(Debug, Clone)]
pub(crate) struct Course {
    pub(crate) fault: Fault,
    /// The first bytes travel in pieces of this length.
    pub(crate) piece: usize,
    /// How many bytes do.
    pub(crate) in_pieces: u64,
    /// How likely it is that a piece has to wait, and for how long.
    pub(crate) stall_percent: u64,
    pub(crate) stall: Duration,
    pub(crate) chance: Chance,
}

/// How a connection ends before its time. Bytes are those of both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// It is taken, and dropped at once.
    Refused,
    /// It is cut in the middle of whatever is under way.
    Cut {
        after: u64,
        how: Cut,
    },
    /// It stays open, but what is sent one way or both is never heard.
    Mute {
        after: u64,
        ways: Ways,
        server: ServerEnd,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// In order, as far as the other side can tell.
    Finish,
    Reset,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ways {
    Up,
    Down,
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// To the server.
    Up,
    /// To the client.
    Down,
}

/// What the server notices of a connection that has become mute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerEnd {
    /// That it is gone, at once.
    Closed,
    /// That the client closes it.
    Follows,
    /// Nothing.
    Left,
}

impl Ways {
    pub(crate) fn has(self, way: Way) -> bool {
        matches!((self, way), (Ways::Both, _) | (Ways::Up, Way::Up) | (Ways::Down, Way::Down))
    }
}

impl Course {
    /// A connection without a fault.
    pub(crate) fn smooth() -> Self {
        Self {
            fault: Fault::None,
            piece: 1,
            in_pieces: 0,
            stall_percent: 0,
            stall: Duration::ZERO,
            chance: Chance::new(0),
        }
    }

    /// A connection that is refused.
    fn refused() -> Self {
        Self { fault: Fault::Refused, ..Self::smooth() }
    }

    /// Draws the connections of one run; those that come after them are smooth.
    pub(crate) fn draw(chance: &mut Chance) -> Vec<Self> {
        let mut courses = Vec::new();
        for _ in 0..chance.within(1, 4) {
            courses.push(Self::faulty(chance));
            if chance.percent(25) {
                let refusals = chance.within(1, 3);
                courses.extend((0..refusals).map(|_| Self::refused()));
            }
        }
        courses
    }

    fn faulty(chance: &mut Chance) -> Self {
        let after = chance.magnitude(LATEST_FAULT);
        let fault = if chance.percent(70) {
            Fault::Cut { after, how: chance.pick(&[Cut::Finish, Cut::Reset]) }
        } else {
            Fault::Mute {
                after,
                ways: chance.pick(&[Ways::Up, Ways::Down, Ways::Both]),
                server: chance.pick(&[
                    ServerEnd::Closed,
                    ServerEnd::Closed,
                    ServerEnd::Follows,
                    ServerEnd::Follows,
                    ServerEnd::Left,
                ]),
            }
        };
        let in_pieces = if chance.percent(50) { chance.magnitude(8 << 10) } else { 0 };
        Self {
            fault,
            piece: chance.pick(&[1, 3, 10, 100, 1400]),
            in_pieces,
            stall_percent: chance.pick(&[0, 0, 1, 5]),
            stall: chance.millis(1, 15),
            chance: chance.branch(),
        }
    }
}
