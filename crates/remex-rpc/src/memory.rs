//! A connection inside one process.

use crate::{ReadHalf, WriteHalf};

/// What may lie between the two ends; as on a socket, a writer waits when it is full.
const CAPACITY: usize = 64 * 1024;

/// Returns the two ends of a connection inside this process; what one writes the other reads.
///
/// Both ends speak lines, like stdio.
pub fn memory() -> ((ReadHalf, WriteHalf), (ReadHalf, WriteHalf)) {
    let (left, right) = tokio::io::duplex(CAPACITY);
    let (left_read, left_write) = tokio::io::split(left);
    let (right_read, right_write) = tokio::io::split(right);
    ((Box::new(left_read), Box::new(left_write)), (Box::new(right_read), Box::new(right_write)))
}
