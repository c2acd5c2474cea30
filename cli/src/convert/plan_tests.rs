use proptest::prelude::*;

use super::super::schema::ChildOrParent;
use super::*;

fn side(at: usize) -> ChildOrParent {
    let name = table(at);
    ChildOrParent { schema: name.schema, table: name.table, columns: vec!["c".into()] }
}

/// Two schemas, so that constraints cross them.
fn table(at: usize) -> TableName {
    TableName::new(if at.is_multiple_of(2) { "even" } else { "odd`" }, format!("t{at}"))
}

fn constraint(number: usize, child: usize, parent: usize) -> Constraint {
    Constraint {
        name: format!("fk{number}"),
        child: side(child),
        parent: side(parent),
        on_delete: "CASCADE".into(),
        on_update: "RESTRICT".into(),
    }
}

fn node(at: usize, engine: &str, role: Role) -> Node {
    Node { name: table(at), engine: engine.into(), bytes: (at as u64 * 7919) % 1000, role }
}

/// A server that does what a plan says, and refuses what a server refuses.
struct Model {
    engines: BTreeMap<TableName, String>,
    constraints: BTreeSet<Constraint>,
}

impl Model {
    fn carry_out(&mut self, group: &Group) {
        for dropped in &group.drop {
            assert!(self.constraints.remove(dropped), "{dropped:?} is not there");
        }
        for alter in &group.alter {
            let name = &alter.name;
            let touching = self.constraints.iter().find(|constraint| constraint.touches(name));
            assert_eq!(touching, None, "{name} is altered under it");
            self.engines.insert(name.clone(), "Tidepool".into());
            for added in &alter.add {
                assert_eq!(added.child.name(), *name);
                assert!(group.drop.contains(added), "an unchecked one comes with the ALTER");
                self.add(added);
            }
        }
        for added in &group.add {
            self.add(added);
        }
    }

    fn add(&mut self, added: &Constraint) {
        let child = &self.engines[&added.child.name()];
        if let Some(parent) = self.engines.get(&added.parent.name()) {
            assert_eq!(child, parent, "{added:?}");
        }
        assert!(self.constraints.insert(added.clone()), "{added:?} is there already");
    }
}

/// Tables by number: 0 to alter, 1 to leave, 2 done. Edges, and which of them are missing.
/// Constraints
/// that exist are within one engine, as on any server, and may name a parent that is not there.
fn graphs() -> impl Strategy<Value = (Vec<Node>, Vec<Constraint>, Vec<Constraint>)> {
    (1_usize..14).prop_flat_map(|count| {
        let roles =
            prop::collection::vec(prop_oneof![6 => Just(0), 1 => Just(1), 2 => Just(2)], count);
        let edges = prop::collection::vec((0..count, 0..=count, any::<bool>()), 0..count * 2);
        (roles, edges).prop_map(|(roles, edges)| {
            let nodes: Vec<Node> = roles
                .iter()
                .enumerate()
                .map(|(at, role)| match role {
                    0 => node(at, "InnoDB", Role::Alter),
                    1 => node(at, "InnoDB", Role::Stays("SPATIAL".into())),
                    _ => node(at, "Tidepool", Role::Done),
                })
                .collect();
            let (mut existing, mut missing) = (Vec::new(), Vec::new());
            for (number, (child, parent, is_missing)) in edges.into_iter().enumerate() {
                let constraint = constraint(number, child, parent);
                let is_possible =
                    nodes.get(parent).is_none_or(|parent| parent.engine == nodes[child].engine);
                match is_missing || !is_possible {
                    true => missing.push(constraint),
                    false => existing.push(constraint),
                }
            }
            (nodes, existing, missing)
        })
    })
}

fn model(nodes: &[Node], existing: &[Constraint]) -> Model {
    Model {
        engines: nodes.iter().map(|node| (node.name.clone(), node.engine.clone())).collect(),
        constraints: existing.iter().cloned().collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_table_is_altered_under_a_constraint_and_all_of_them_come_back(
        (nodes, existing, missing) in graphs()
    ) {
        let mut model = model(&nodes, &existing);
        let plan = plan(&nodes, &existing, &missing);
        for group in &plan.groups {
            model.carry_out(group);
        }
        for constraint in &existing {
            prop_assert!(model.constraints.contains(constraint), "{constraint:?} is lost");
        }
        let left_out: BTreeSet<&TableName> = plan.left_out.iter().map(|(name, _)| name).collect();
        for node in &nodes {
            let is_converted = model.engines[&node.name] == "Tidepool";
            match node.role {
                Role::Alter => prop_assert_eq!(is_converted, !left_out.contains(&node.name)),
                Role::Done => prop_assert!(is_converted),
                Role::Stays(_) => prop_assert!(!is_converted),
            }
        }
        // What is missing stays missing only where its sides are in different engines.
        for constraint in &missing {
            let engine = |name: &TableName| model.engines.get(name);
            let parent = engine(&constraint.parent.name());
            let can_be = parent.is_none() || parent == engine(&constraint.child.name());
            prop_assert_eq!(model.constraints.contains(constraint), can_be, "{:?}", constraint);
        }
    }

    #[test]
    fn a_plan_that_was_cut_off_anywhere_is_finished_by_the_next(
        (nodes, existing, missing) in graphs(), cut in 0_usize..60
    ) {
        // The journal has what a group drops before the first statement.
        let mut model = model(&nodes, &existing);
        let mut noted: BTreeSet<Constraint> = missing.iter().cloned().collect();
        let mut steps = cut;
        let mut step = || { let is_on = steps > 0; steps = steps.saturating_sub(1); is_on };
        for group in &plan(&nodes, &existing, &missing).groups {
            noted.extend(group.drop.iter().cloned());
            for dropped in &group.drop {
                if step() { model.constraints.remove(dropped); }
            }
            for alter in &group.alter {
                if step() {
                    model.engines.insert(alter.name.clone(), "Tidepool".into());
                    model.constraints.extend(alter.add.iter().cloned());
                }
            }
            for added in &group.add {
                if step() { model.constraints.insert(added.clone()); }
            }
            if !step() { break; }
        }
        let nodes: Vec<Node> = nodes
            .into_iter()
            .map(|mut node| {
                node.engine = model.engines[&node.name].clone();
                if node.engine == "Tidepool" { node.role = Role::Done; }
                node
            })
            .collect();
        let now: Vec<Constraint> = model.constraints.iter().cloned().collect();
        let missing: Vec<Constraint> =
            noted.into_iter().filter(|noted| !model.constraints.contains(noted)).collect();
        for group in &plan(&nodes, &now, &missing).groups {
            model.carry_out(group);
        }
        for constraint in &existing {
            prop_assert!(model.constraints.contains(constraint), "{constraint:?} is lost");
        }
    }
}

#[test]
fn a_cycle_and_a_self_reference_are_one_group() {
    let nodes: Vec<Node> = (0..4).map(|at| node(at, "InnoDB", Role::Alter)).collect();
    let existing = [constraint(0, 0, 1), constraint(1, 1, 0), constraint(2, 2, 2)];
    let plan = plan(&nodes, &existing, &[]);
    let sizes: Vec<(usize, usize)> =
        plan.groups.iter().map(|group| (group.alter.len(), group.drop.len())).collect();
    assert_eq!(sizes.iter().filter(|size| **size == (2, 2)).count(), 1, "{sizes:?}");
    assert_eq!(sizes.iter().filter(|size| **size == (1, 1)).count(), 1, "{sizes:?}");
    assert_eq!(sizes.iter().filter(|size| **size == (1, 0)).count(), 1, "{sizes:?}");
}

#[test]
fn parents_come_first_and_only_what_a_cycle_leaves_is_added_apart() {
    let nodes: Vec<Node> = (0..5).map(|at| node(at, "InnoDB", Role::Alter)).collect();
    // 0 -> 1 -> 2 without a cycle; 3 and 4 reference each other, and 3 itself.
    let existing = [
        constraint(0, 0, 1),
        constraint(1, 1, 2),
        constraint(2, 3, 4),
        constraint(3, 4, 3),
        constraint(4, 3, 3),
        constraint(5, 0, 2),
    ];
    let plan = plan(&nodes, &existing, &[]);
    let group = plan.groups.iter().find(|group| group.alter.len() == 3).unwrap();
    let order: Vec<&TableName> = group.alter.iter().map(|alter| &alter.name).collect();
    assert_eq!(order, [&table(2), &table(1), &table(0)]);
    assert!(group.add.is_empty());
    let cycle = plan.groups.iter().find(|group| group.alter.len() == 2).unwrap();
    assert_eq!(cycle.add.len(), 1, "one of the two must wait for the other's table");
    assert_eq!(cycle.all_added().count(), 3);
}

#[test]
fn a_table_that_stays_keeps_those_that_foreign_keys_connect_with_it() {
    let nodes = [
        node(0, "InnoDB", Role::Alter),
        node(1, "InnoDB", Role::Stays("a SPATIAL index".into())),
        node(2, "InnoDB", Role::Alter),
        node(3, "InnoDB", Role::Alter),
    ];
    let plan = plan(&nodes, &[constraint(0, 0, 2), constraint(1, 2, 1)], &[]);
    assert_eq!(plan.groups.len(), 1);
    assert_eq!(plan.groups[0].alter, [Alter { name: table(3), add: Vec::new() }]);
    let left_out: Vec<&TableName> = plan.left_out.iter().map(|(name, _)| name).collect();
    assert_eq!(left_out.len(), 2);
    for (_, why) in &plan.left_out {
        assert!(why.contains("`odd```.`t1`") && why.contains("SPATIAL"), "{why}");
    }
}
