//! A shard is made of others, piece by piece.
