//! What children are created with, reserved before the first of them.

use std::io;

use crate::{base::slots::StdioSlots, launch::clone::Stack};

/// What one thread creates children with.
pub(crate) struct ChildResources {
    pub(crate) stack: Stack,
    /// For the process between us and a confined child.
    pub(crate) between: Option<Stack>,
    pub(crate) slots: StdioSlots,
}

impl ChildResources {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { stack: Stack::new()?, between: None, slots: StdioSlots::new()? })
    }
}
