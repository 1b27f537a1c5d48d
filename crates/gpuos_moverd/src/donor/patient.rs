//! How long a node is tried that should hold parts: one that is dead is not waited for, and one that is slow is.

use std::thread;
use std::time::{Duration, Instant};

use gpuos_workload::{Hint, Holder};

use super::client::{Client, Wanted};
use super::words::Holding;
use crate::network::Network;
use crate::not_reached::Hope;

/// A node that the workload manager holds for down is tried once, for so long: it may be wrong about it.
const DOWN: Duration = Duration::from_secs(1);
/// A node on which nobody takes a connection: its mover may be started anew.
const AWAY: Duration = Duration::from_secs(15);
/// A node that takes connections, and has much to do.
const SLOW: Duration = Duration::from_secs(90);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(500);

/// Asks a node what it holds, as often as that may help.
///
/// # Errors
/// It is not reached, or does not tell: a sentence.
pub fn ask(
    network: &Network,
    holder: &Holder,
    wanted: &Wanted,
) -> Result<(Client, Holding), String> {
    let begun = Instant::now();
    // Of whom nobody says that it holds anything, it is not waited for.
    let once = holder.is_down || holder.hint == Hint::Nothing;
    let patience = match once {
        true => DOWN,
        false => AWAY,
    };
    let mut left = patience;
    loop {
        let not = match Client::open(network, (&holder.node, left), wanted) {
            Ok(open) => return Ok(open),
            Err(not) => not,
        };
        let most = match not.hope {
            Hope::Away if once => return Err(not.why),
            Hope::Slow if once && !holder.is_down => return Err(not.why),
            Hope::Away => patience,
            Hope::Slow => SLOW,
            Hope::None | Hope::Keys => return Err(not.why),
        };
        if begun.elapsed() + AGAIN >= most {
            return Err(not.why);
        }
        thread::sleep(AGAIN);
        // A connection that takes longer is none of a node that is only slow.
        left = patience.saturating_sub(begun.elapsed()).max(AGAIN);
    }
}
