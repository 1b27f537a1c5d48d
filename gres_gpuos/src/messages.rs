//! What gres/gpuos writes into the logs of slurmd and slurmstepd.

gpuos_model::messages! {
    /// The layout table does not have this release of Slurm, or Slurm's records cannot be read safely: jobs with slices do not
    /// run on this node.
    pub fn no_layout(why) = "jobs get no GPUOS_SLICES and no device of a slice: {why}",
        "Do what the reason says, then restart slurmd.";
    /// The lines of GRES gpuos in gres.conf are not those of slices.
    pub fn gres_conf_is_wrong(why) = "gres.conf: {why}; no device of a slice is allowed or denied",
        "Write what `gpuos discover` prints on the node into gres.conf, then restart slurmd.";
}

#[cfg(test)]
#[path = "../../tests/reference/messages.rs"]
mod page;

#[test]
fn the_page_in_the_reference_has_every_message() {
    page::hold(&[("gres/gpuos", ROWS)], &["Message::of_table"]);
}
