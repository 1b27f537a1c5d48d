//! What a node's part of a checkpoint consists of.
