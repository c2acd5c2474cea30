//! Cycles of a directed graph: strongly connected components (Tarjan, "Depth-first search and
//! linear graph algorithms", SIAM J. Comput. 1, 1972), and a short cycle in each.

use std::collections::{HashMap, VecDeque};

/// One short cycle of each component that has one, as numbers of edges in their order, at most
/// `limit` cycles.
pub fn short_cycles(nodes: usize, edges: &[(u32, u32)], limit: usize) -> Vec<Vec<usize>> {
    let graph = Adjacent::new(nodes, edges);
    let component = components(nodes, &graph);
    let mut members: HashMap<u32, Vec<u32>> = HashMap::new();
    for (node, number) in component.iter().enumerate() {
        members.entry(*number).or_default().push(node as u32);
    }
    let mut cyclic: Vec<Vec<u32>> = members.into_values().filter(|nodes| nodes.len() > 1).collect();
    cyclic.sort_by_key(|nodes| (nodes.len(), nodes[0]));
    cyclic.truncate(limit);
    cyclic.iter().filter_map(|nodes| shortest(nodes, &component, &graph)).collect()
}

/// The edges by the node that they leave.
struct Adjacent {
    /// Where a node's edges begin in `edges`; one more at the end.
    start: Vec<u32>,
    /// Target and number of each.
    edges: Vec<(u32, u32)>,
}

impl Adjacent {
    fn new(nodes: usize, edges: &[(u32, u32)]) -> Adjacent {
        let mut start = vec![0u32; nodes + 1];
        for (from, _) in edges {
            start[*from as usize + 1] += 1;
        }
        for node in 0..nodes {
            start[node + 1] += start[node];
        }
        let (mut next, mut sorted) = (start.clone(), vec![(0, 0); edges.len()]);
        for (number, (from, to)) in edges.iter().enumerate() {
            let place = &mut next[*from as usize];
            sorted[*place as usize] = (*to, number as u32);
            *place += 1;
        }
        Adjacent { start, edges: sorted }
    }

    fn of(&self, node: u32) -> &[(u32, u32)] {
        &self.edges[self.start[node as usize] as usize..self.start[node as usize + 1] as usize]
    }
}

/// The number of each node's component. Without recursion, for a history is deep.
fn components(nodes: usize, graph: &Adjacent) -> Vec<u32> {
    const NEW: u32 = u32::MAX;
    let (mut index, mut low) = (vec![NEW; nodes], vec![0u32; nodes]);
    let mut component = vec![NEW; nodes];
    let (mut stack, mut path): (Vec<u32>, Vec<(u32, usize)>) = (Vec::new(), Vec::new());
    let (mut next_index, mut next_component) = (0, 0);
    for root in 0..nodes as u32 {
        if index[root as usize] != NEW {
            continue;
        }
        path.push((root, 0));
        while let Some((node, at)) = path.pop() {
            let n = node as usize;
            if at == 0 {
                index[n] = next_index;
                low[n] = next_index;
                next_index += 1;
                stack.push(node);
            }
            let edges = graph.of(node);
            if at > 0 {
                low[n] = low[n].min(low[edges[at - 1].0 as usize]);
            }
            let mut descend = None;
            for (skipped, (to, _)) in edges[at..].iter().enumerate() {
                let t = *to as usize;
                if index[t] == NEW {
                    descend = Some((at + skipped + 1, *to));
                    break;
                }
                if component[t] == NEW {
                    low[n] = low[n].min(index[t]);
                }
            }
            if let Some((again_at, to)) = descend {
                path.push((node, again_at));
                path.push((to, 0));
                continue;
            }
            if low[n] == index[n] {
                while let Some(member) = stack.pop() {
                    component[member as usize] = next_component;
                    // So that `low` of a finished one never counts.
                    low[member as usize] = NEW;
                    if member == node {
                        break;
                    }
                }
                next_component += 1;
            }
        }
    }
    component
}

/// From how many nodes of a component a cycle is looked for.
const BEGINNINGS: usize = 200;

/// The shortest cycle through one of the first nodes of a component.
fn shortest(nodes: &[u32], component: &[u32], graph: &Adjacent) -> Option<Vec<usize>> {
    let mut best: Option<Vec<usize>> = None;
    for start in nodes.iter().take(BEGINNINGS) {
        // How each node was reached: from where, by which edge.
        let mut reached: HashMap<u32, (u32, u32)> = HashMap::new();
        let mut queue = VecDeque::from([(*start, 0usize)]);
        'search: while let Some((node, length)) = queue.pop_front() {
            if best.as_ref().is_some_and(|best| length + 1 >= best.len()) {
                break;
            }
            for (to, number) in graph.of(node) {
                if component[*to as usize] != component[node as usize] {
                    continue;
                }
                if to == start {
                    let mut cycle = vec![*number as usize];
                    let mut at = node;
                    while at != *start {
                        let (before, edge) = reached[&at];
                        cycle.push(edge as usize);
                        at = before;
                    }
                    cycle.reverse();
                    best = Some(cycle);
                    break 'search;
                }
                if !reached.contains_key(to) {
                    reached.insert(*to, (node, *number));
                    queue.push_back((*to, length + 1));
                }
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_without_a_cycle_has_none() {
        assert!(short_cycles(4, &[(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)], 10).is_empty());
    }

    #[test]
    fn the_shortest_cycle_of_each_component_is_found() {
        // 0 → 1 → 2 → 3 → 0 with the shortcut 2 → 0; 4 ⇄ 5, reached from 3; 6 alone.
        let edges = [(0, 1), (1, 2), (2, 3), (3, 0), (2, 0), (3, 4), (4, 5), (5, 4), (5, 6)];
        let mut cycles = short_cycles(7, &edges, 10);
        cycles.iter_mut().for_each(|cycle| cycle.sort_unstable());
        assert_eq!(cycles, [vec![6, 7], vec![0, 1, 4]]);
    }

    #[test]
    fn a_long_path_is_no_problem_for_the_stack() {
        let mut edges: Vec<(u32, u32)> = (0..200_000).map(|node| (node, node + 1)).collect();
        assert!(short_cycles(200_001, &edges, 10).is_empty());
        edges.push((200_000, 199_990));
        assert_eq!(short_cycles(200_001, &edges, 10)[0].len(), 11);
    }
}
