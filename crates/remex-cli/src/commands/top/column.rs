//! The columns of the list: their content and sort order.

use std::cmp::Ordering;

use ratatui::layout::Constraint;

use super::state::Seen;
use crate::{
    args::top::Column,
    render::text::{age, line, plain, size},
};

/// The order of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) column: Column,
    pub(super) direction: Direction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Small numbers and early letters first.
    Ascending,
    Descending,
}

impl Direction {
    pub(super) fn reversed(self) -> Self {
        match self {
            Self::Ascending => Self::Descending,
            Self::Descending => Self::Ascending,
        }
    }
}

impl Sort {
    /// Sorts by a column in its usual order: numbers descending, and texts alphabetically.
    pub(super) fn by(column: Column) -> Self {
        let direction = match column {
            Column::Env | Column::Name | Column::State | Column::Durable | Column::Command => {
                Direction::Ascending
            }
            Column::Cpu | Column::Mem | Column::Rate | Column::Out | Column::Age => Direction::Descending,
        };
        Self { column, direction }
    }

    pub(super) fn compare(self, one: &Seen, other: &Seen, now_ms: u64) -> Ordering {
        let order = self.column.compare(one, other, now_ms);
        match self.direction {
            Direction::Ascending => order,
            Direction::Descending => order.reverse(),
        }
    }
}

impl Column {
    pub(super) const ALL: [Self; 10] = [
        Self::Env,
        Self::Name,
        Self::State,
        Self::Cpu,
        Self::Mem,
        Self::Rate,
        Self::Out,
        Self::Age,
        Self::Durable,
        Self::Command,
    ];

    /// Returns the next column, or the one before.
    pub(super) fn beside(self, steps: isize, shows_env: bool) -> Self {
        let all: Vec<_> = Self::ALL.into_iter().filter(|column| shows_env || *column != Self::Env).collect();
        let at = all.iter().position(|column| *column == self).unwrap_or_default();
        let at = isize::try_from(at).unwrap_or_default() + steps;
        let count = isize::try_from(all.len()).unwrap_or(1);
        all[usize::try_from(at.rem_euclid(count)).unwrap_or_default()]
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Env => "ENV",
            Self::Name => "NAME",
            Self::State => "STATE",
            Self::Cpu => "CPU",
            Self::Mem => "MEM",
            Self::Rate => "OUT/s",
            Self::Out => "OUT",
            Self::Age => "AGE",
            Self::Durable => "DURABLE",
            Self::Command => "COMMAND",
        }
    }

    pub(super) fn width(self) -> Constraint {
        match self {
            // These are as wide as their content, if there is room.
            Self::Env => Constraint::Min(5),
            Self::Name => Constraint::Min(16),
            Self::State => Constraint::Min(9),
            Self::Cpu => Constraint::Length(5),
            Self::Mem | Self::Rate | Self::Out => Constraint::Length(7),
            Self::Durable => Constraint::Length(8),
            Self::Age => Constraint::Length(6),
            Self::Command => Constraint::Fill(1),
        }
    }

    /// Returns the width of the window from which on it is shown.
    pub(super) fn from(self) -> u16 {
        match self {
            Self::Name | Self::State => 0,
            Self::Cpu => 34,
            Self::Mem => 42,
            Self::Env => 44,
            Self::Rate => 50,
            Self::Command => 56,
            Self::Age => 64,
            Self::Out => 72,
            Self::Durable => 90,
        }
    }

    pub(super) fn cell(self, seen: &Seen, now_ms: u64) -> String {
        let row = &seen.row;
        match self {
            Self::Env => plain(&seen.environment),
            Self::Name => plain(&row.name),
            Self::State => row.outcome(),
            Self::Cpu => cpu(seen.rate.cpu_percent),
            Self::Mem => bytes(row.entry.resident_bytes),
            Self::Rate => bytes(seen.rate.said),
            Self::Out => size(row.output_bytes()),
            Self::Age => age(row.age(now_ms)),
            Self::Durable => row.durability().to_owned(),
            Self::Command => line(&row.entry.argv),
        }
    }

    fn compare(self, one: &Seen, other: &Seen, now_ms: u64) -> Ordering {
        let by_text = || self.cell(one, now_ms).cmp(&self.cell(other, now_ms));
        match self {
            Self::Env | Self::Name | Self::State | Self::Durable | Self::Command => by_text(),
            Self::Cpu => tenths(one.rate.cpu_percent).cmp(&tenths(other.rate.cpu_percent)),
            Self::Mem => one.row.entry.resident_bytes.cmp(&other.row.entry.resident_bytes),
            Self::Rate => one.rate.said.cmp(&other.rate.said),
            Self::Out => one.row.output_bytes().cmp(&other.row.output_bytes()),
            Self::Age => one.row.age(now_ms).cmp(&other.row.age(now_ms)),
        }
    }
}

/// Rounds to the displayed precision, so that rows do not swap for smaller differences.
#[allow(clippy::cast_possible_truncation)] // Nothing uses billions of processors.
fn tenths(percent: Option<f64>) -> Option<i64> {
    percent.map(|percent| (percent * 10.0).round() as i64)
}

fn cpu(percent: Option<f64>) -> String {
    match percent {
        None => "-".to_owned(),
        Some(percent) if percent < 9.95 => format!("{percent:.1}%"),
        Some(percent) => format!("{percent:.0}%"),
    }
}

fn bytes(amount: Option<u64>) -> String {
    amount.map_or_else(|| "-".to_owned(), size)
}
