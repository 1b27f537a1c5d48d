//! What a job asks of Slurm.

/// What a job asks of Slurm, as far as it matters here. 0 = not said.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Shape {
    /// Fewest nodes.
    pub min_nodes: u32,
    /// Most nodes.
    pub max_nodes: u32,
    /// Tasks.
    pub tasks: u32,
    /// Tasks of each node.
    pub tasks_per_node: u32,
    /// Whether the job takes whole nodes.
    pub exclusive: bool,
    /// `--gpus`, as Slurm writes it.
    pub per_job: Option<String>,
    /// `--gres`, `--gpus-per-node`.
    pub per_node: Option<String>,
    /// `--gpus-per-socket`.
    pub per_socket: Option<String>,
    /// `--gpus-per-task`.
    pub per_task: Option<String>,
}

impl Shape {
    /// What it says of GRES, in whatever form.
    pub fn gres_forms(&self) -> impl Iterator<Item = &str> {
        let forms = [
            &self.per_job,
            &self.per_node,
            &self.per_socket,
            &self.per_task,
        ];
        forms.into_iter().flatten().map(String::as_str)
    }
}
