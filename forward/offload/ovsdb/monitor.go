package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
)

// Monitor is a copy of some columns of some tables, which follows the server (section 4.1.5).
type Monitor struct {
	client *Client
	rows   map[string]map[string]Row // by table and UUID; Client.mu guards it
	ready  bool                      // rows has all. Before, rows has nil for those that are gone
	news   chan struct{}
}

// tableUpdates are a server's: by table and UUID, the row as it is now. A row that is gone has no new.
type tableUpdates map[string]map[string]struct {
	New Row `json:"new"`
}

// Monitor follows columns by the names of their tables. A client has one Monitor.
func (c *Client) Monitor(ctx context.Context, columns map[string][]string) (*Monitor, error) {
	m := &Monitor{client: c, rows: map[string]map[string]Row{}, news: make(chan struct{}, 1)}
	c.mu.Lock()
	if c.monitor != nil {
		c.mu.Unlock()
		return nil, errors.New("the client has a monitor already")
	}
	c.monitor = m
	c.mu.Unlock()
	requests := map[string]any{}
	for table, names := range columns {
		requests[table] = map[string]any{"columns": names}
	}
	text, err := c.call(ctx, "monitor", Database, "all", requests)
	if err != nil {
		return nil, err
	}
	var all tableUpdates
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("read tables of the database: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// An update that came meanwhile is newer than the answer, which the reader has handed over before.
	for table, rows := range all {
		for id, u := range rows {
			if _, newer := m.rows[table][id]; !newer && u.New != nil {
				m.put(table, id, u.New)
			}
		}
	}
	m.ready = true
	for _, rows := range m.rows {
		maps.DeleteFunc(rows, func(_ string, r Row) bool { return r == nil })
	}
	return m, nil
}

// put stores a row; nil says that it is gone. Client.mu is held.
func (m *Monitor) put(table, id string, r Row) {
	if m.rows[table] == nil {
		m.rows[table] = map[string]Row{}
	}
	m.rows[table][id] = r
	if r == nil && m.ready {
		delete(m.rows[table], id)
	}
}

// News has a value after changes that Rows has already.
func (m *Monitor) News() <-chan struct{} { return m.news }

// Rows returns a table's rows by their UUIDs. The caller does not change the rows.
func (m *Monitor) Rows(table string) map[string]Row {
	m.client.mu.Lock()
	defer m.client.mu.Unlock()
	return maps.Clone(m.rows[table])
}

func (c *Client) update(params json.RawMessage) error {
	var parts []json.RawMessage
	var updates tableUpdates
	err := json.Unmarshal(params, &parts)
	if err == nil && len(parts) == 2 {
		err = json.Unmarshal(parts[1], &updates)
	}
	if err != nil || len(parts) != 2 {
		return fmt.Errorf("update of tables: %.60s", params)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.monitor
	if m == nil {
		return nil
	}
	for table, rows := range updates {
		for id, u := range rows {
			m.put(table, id, u.New)
		}
	}
	select {
	case m.news <- struct{}{}:
	default: // one that nobody has taken yet stands for all
	}
	return nil
}
