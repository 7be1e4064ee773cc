package forward

// Exclusively calls a function while no other process changes the table, or calls this. The
// function does not change the table itself.
func (t *Table) Exclusively(f func() error) error { return t.locked(f) }
