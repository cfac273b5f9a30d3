//! Control of requests in progress.

use serde::{Deserialize, Serialize};

use crate::RequestId;

/// `request/cancel`, a notification for clients with the capability `cancel`: the request ends
/// with an error; nothing is undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cancel {
    /// The id of the request, with the type it was sent with.
    pub id: RequestId,
}
