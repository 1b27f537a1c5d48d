//! Which node holds which shard of which stripe.
