//! The screen as people see it, drawn into memory.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use gpuos_host::slurm::NodeRecord;

use super::*;
use gpuos_core::wire::MigLoad;

use crate::top::board::{FaultRow, GpuRow, JobRow, NodeRow, ProcessRow, SliceRow, Sources};
use crate::top::of_slurm::node;
use crate::top::prometheus::Figures;

fn board() -> Board {
    let gpu = |index: usize| GpuRow {
        node: "n1".into(),
        index,
        kind: "h100".into(),
        state: ["in-use", "drained", "available"][index % 3].into(),
        celsius: Some(40 + (index as u32 * 7) % 30),
        power_mw: Some(100_400),
        busy: Some(index as u32),
        memory_mib: Some(1024),
        jobs: match index % 3 {
            0 => vec!["17".into()],
            _ => Vec::new(),
        },
        reason: String::new(),
    };
    Board {
        nodes: vec![NodeRow {
            name: "n1".into(),
            state: "mixed".into(),
            gpus: 12,
            used: 4,
            out: 4,
            power_mw: Some(1_204_800),
            ..NodeRow::default()
        }],
        gpus: (0..12).map(gpu).collect(),
        jobs: vec![JobRow {
            label: "17".into(),
            gpus: 4,
            ..JobRow::default()
        }],
        faults: vec![FaultRow {
            node: "n1".into(),
            gpu: Some(1),
            rule: "xid-79".into(),
            message: "Xid 79".into(),
        }],
        processes: vec![ProcessRow {
            node: "n1".into(),
            gpu: 1,
            pid: 4711,
            uid: 1000,
            program: "miner".into(),
            foreign: true,
            ..ProcessRow::default()
        }],
        slices: vec![SliceRow {
            node: "n1".into(),
            profile: "1g.10gb".into(),
            unknown: "not polled yet".into(),
            load: MigLoad {
                load_unknown: Some("no GPM".into()),
                ..MigLoad::default()
            },
            ..SliceRow::default()
        }],
        missing: vec!["no jobs: slurmctld is away".into()],
    }
}

struct Screen {
    terminal: Terminal<TestBackend>,
    view: View,
    board: Board,
}

impl Screen {
    fn new() -> Screen {
        Screen {
            terminal: Terminal::new(TestBackend::new(100, 10)).unwrap(),
            view: View::new(Pick::default(), true),
            board: board(),
        }
    }

    fn press(&mut self, keys: &[KeyCode]) {
        for key in keys {
            self.draw();
            assert_eq!(self.view.key((*key).into()), Command::Draw, "{key:?}");
        }
    }

    fn draw(&mut self) -> Vec<String> {
        let (view, board) = (&mut self.view, &self.board);
        self.terminal.draw(|frame| view.draw(frame, board)).unwrap();
        let buffer = self.terminal.backend().buffer();
        let line = |cells: &[ratatui::buffer::Cell]| {
            let text: String = cells.iter().map(|cell| cell.symbol()).collect();
            text.trim_end().to_string()
        };
        buffer.content.chunks(100).map(line).collect()
    }
}

fn letters(text: &str) -> Vec<KeyCode> {
    text.chars().map(KeyCode::Char).collect()
}

#[test]
fn the_screen_has_head_tables_notes_and_help() {
    let mut screen = Screen::new();
    let lines = screen.draw();
    assert_eq!(
        lines[0],
        "gpuos top: 1 node, 12 GPUs: 4 used, 4 out, 0 degraded; 1 running, 0 waiting; hottest n1:4 68 °C",
        "1205 W has no room"
    );
    assert_eq!(
        lines[1],
        " 1 Nodes 1   2 GPUs 12   3 Jobs 1   4 Faults 1   5 Processes 1   6 Slices 1"
    );
    assert_eq!(
        lines[2],
        "NODE  GPU  STATE       C  WATTS  BUSY%  MEM_MIB  JOBS  TYPE  REASON"
    );
    assert_eq!(
        lines[3],
        "n1      0  in-use     40    100      0     1024    17  h100"
    );
    assert_eq!(
        lines[4],
        "n1      1  drained    47    100      1     1024        h100"
    );
    assert_eq!(lines[8], "no jobs: slurmctld is away");
    assert!(lines[9].contains("q: quit"), "{}", lines[9]);
    let cell = &screen.terminal.backend().buffer()[(0, 4)];
    assert_eq!(cell.fg, Color::Red, "what is drained is red");
}

#[test]
fn keys_scroll_sort_filter_and_change_the_table() {
    let mut screen = Screen::new();
    screen.press(&[KeyCode::End]);
    assert!(screen.draw()[7].starts_with("n1     11"));
    screen.press(&[KeyCode::Home, KeyCode::PageDown]);
    assert!(screen.draw()[7].starts_with("n1      5"));
    // NODE, GPU, STATE, C, from the hottest on.
    screen.press(&letters("ssssr"));
    let lines = screen.draw();
    assert!(
        lines[2].contains("C↓") && lines[3].contains("68"),
        "{lines:?}"
    );
    screen.press(&letters("/drained"));
    assert!(screen.draw()[9].starts_with("filter: drained_"));
    assert!(
        screen.draw()[3..7]
            .iter()
            .all(|line| line.contains("drained"))
    );
    assert_eq!(screen.draw()[7], "");
    screen.press(&[KeyCode::Enter, KeyCode::Char('4')]);
    assert_eq!(screen.draw()[3], "", "the filter holds for each table");
    screen.press(&[KeyCode::Char('/'), KeyCode::Esc]);
    assert_eq!(screen.draw()[3], "n1      1  xid-79  Xid 79");
    screen.press(&[KeyCode::Tab]);
    let lines = screen.draw();
    assert!(
        lines[3].starts_with("n1      1       4711  1000"),
        "{lines:?}"
    );
    assert!(lines[3].ends_with("yes      miner"), "{lines:?}");
    screen.press(&[KeyCode::Tab]);
    let slice = screen.draw()[3].clone();
    assert!(slice.contains("n/a (not polled yet)"), "{slice}");
    assert!(slice.ends_with("n/a  n/a (no GPM)"), "{slice}");
    screen.press(&[KeyCode::Tab]);
    assert!(screen.draw()[3].starts_with("n1    mixed"));
    screen.press(&[KeyCode::BackTab, KeyCode::BackTab]);
    assert!(screen.draw()[3].contains("miner"));
    assert_eq!(screen.view.key(KeyCode::Char('q').into()), Command::Quit);
}

#[test]
fn no_size_and_no_board_upsets_it() {
    for (width, height) in [(1, 1), (3, 2), (20, 4), (300, 100)] {
        for board in [Board::default(), board()] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            let mut view = View::new(Pick::default(), false);
            for key in "12345srpjk".chars() {
                terminal.draw(|frame| view.draw(frame, &board)).unwrap();
                view.key(KeyCode::Char(key).into());
            }
        }
    }
}

/// A site of 1,000 nodes with eight GPUs, of which Prometheus knows all nodes but two.
fn thousand() -> Board {
    let record = |at: usize| {
        let text = format!(
            "NodeName=n{at} Arch=x86_64\n   Gres=gpu:h100:8\n   State=IDLE ThreadsPerCore=1\n"
        );
        node(&NodeRecord::parse_all(&text).remove(0), None)
    };
    let figures = |at: usize| {
        let gpu = |gpu: usize| {
            let celsius =
                Some(((at * 7 + gpu) % 60) as u32 + u32::from(at == 777 && gpu == 5) * 40);
            (
                gpu,
                Figures {
                    polled: true,
                    celsius,
                    power_mw: Some(500_000),
                    ..Figures::default()
                },
            )
        };
        (format!("n{at}"), (0..8).map(gpu).collect())
    };
    let known = (1..=1000).filter(|at| ![41, 42].contains(at));
    Board::new(Sources {
        nodes: Some((1..=1000).map(record).collect()),
        figures: Some(known.map(figures).collect()),
        ..Sources::default()
    })
}

#[test]
fn a_thousand_nodes_are_sorted_filtered_and_scrolled() {
    let mut screen = Screen::new();
    screen.board = thousand();
    let lines = screen.draw();
    assert_eq!(
        lines[1],
        " 1 Nodes 1000   2 GPUs 8000   3 Jobs 0   4 Faults 0   5 Processes 0   6 Slices 0"
    );
    let notes = lines[7..9].join(" ");
    assert!(
        notes.contains("load of n[41-42]: Prometheus has nothing of them"),
        "{notes}"
    );
    screen.press(&letters("ssssr"));
    assert!(
        screen.draw()[3].starts_with("n777     5  available"),
        "{:?}",
        screen.draw()
    );
    screen.press(&letters("r"));
    // What nobody tells comes before what is cold.
    assert!(screen.draw()[3].starts_with("n41 "), "{:?}", screen.draw());
    screen.press(&letters("/n1000"));
    screen.press(&[KeyCode::Enter, KeyCode::End]);
    assert!(screen.draw().iter().any(|line| line.starts_with("n1000")));
}

/// The smallest terminal that people have.
#[test]
fn how_to_quit_stands_on_a_screen_of_80_by_24() {
    for (width, height) in [(80, 24), (60, 10), (200, 50)] {
        let mut screen = Screen::new();
        screen.terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let last = |screen: &mut Screen| {
            let (view, board) = (&mut screen.view, &screen.board);
            screen
                .terminal
                .draw(|frame| view.draw(frame, board))
                .unwrap();
            let cells = &screen.terminal.backend().buffer().content;
            let line = &cells[cells.len() - usize::from(width)..];
            let text: String = line.iter().map(|cell| cell.symbol()).collect();
            text.trim_end().to_string()
        };
        let help = last(&mut screen);
        assert!(help.starts_with("q: quit"), "{width}: {help}");
        if width >= 80 {
            assert!(help.ends_with("p: pause"), "{width}: {help}");
        }
        for key in [KeyCode::Char('/'), KeyCode::Char('x'), KeyCode::Enter] {
            let _ = screen.view.key(key.into());
        }
        let help = last(&mut screen);
        assert!(
            help.contains("q: quit") && help.contains("filter: x"),
            "{help}"
        );
    }
}
