package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// Operation is one of a transaction (RFC 7047, section 5.2): the object's members.
type Operation map[string]any

// Condition is a clause of a where: column, function, value.
type Condition [3]any

// Equal selects rows by a column.
func Equal(column string, value any) []Condition { return []Condition{{column, "==", value}} }

// Insert makes a row. Other operations of the transaction name it by Named(name).
func Insert(table, name string, row map[string]any) Operation {
	return Operation{"op": "insert", "table": table, "row": row, "uuid-name": name}
}

// Update changes columns of rows.
func Update(table string, where []Condition, row map[string]any) Operation {
	return Operation{"op": "update", "table": table, "where": where, "row": row}
}

// Select reads columns of rows.
func Select(table string, where []Condition, columns ...string) Operation {
	return Operation{"op": "select", "table": table, "where": where, "columns": columns}
}

// Mutate changes parts of columns of rows.
func Mutate(table string, where []Condition, mutations ...Condition) Operation {
	return Operation{"op": "mutate", "table": table, "where": where, "mutations": mutations}
}

// Wait aborts the transaction at once unless the rows have these columns.
func Wait(table string, where []Condition, columns []string, rows ...map[string]any) Operation {
	return Operation{"op": "wait", "table": table, "where": where, "columns": columns, "until": "==", "rows": rows, "timeout": 0}
}

// Assert aborts the transaction unless the client has the lock.
func Assert(lock string) Operation { return Operation{"op": "assert", "lock": lock} }

// UUID is a value that refers to a row.
func UUID(uuid string) any { return [2]string{"uuid", uuid} }

// Named is a value that refers to a row which the transaction inserts.
func Named(name string) any { return [2]string{"named-uuid", name} }

// SetOf is a set's value.
func SetOf(values ...any) any {
	if values == nil {
		values = []any{}
	}
	return [2]any{"set", values}
}

// MapOf is a map's value.
func MapOf(m map[string]string) any {
	pairs := [][2]string{}
	for k, v := range m {
		pairs = append(pairs, [2]string{k, v})
	}
	return [2]any{"map", pairs}
}

// Result is what one operation gave.
type Result struct {
	Count int    `json:"count"`
	Rows  []Row  `json:"rows"`
	UUID  uuid   `json:"uuid"`
	Error string `json:"error"`
	More  string `json:"details"`
}

// TransactionError is an operation that the server refuses. Nothing of the transaction was done.
type TransactionError struct {
	Operation int // its number; that of the last and one more: the whole
	Kind      string
	Details   string
}

func (e *TransactionError) Error() string {
	if e.Details == "" {
		return fmt.Sprintf("the database refuses operation %d: %s", e.Operation, e.Kind)
	}
	return fmt.Sprintf("the database refuses operation %d: %s: %s", e.Operation, e.Kind, e.Details)
}

// Transact does all the operations or none. An error is a TransactionError or the connection's;
// after the latter, it may have been done.
func (c *Client) Transact(ctx context.Context, ops ...Operation) ([]Result, error) {
	params := []any{Database}
	for _, op := range ops {
		params = append(params, op)
	}
	text, err := c.call(ctx, "transact", params...)
	if err != nil {
		return nil, err
	}
	var results []*Result
	if err := json.Unmarshal(text, &results); err != nil {
		return nil, fmt.Errorf("read results of transaction: %w", err)
	}
	var list []Result
	for i, r := range results {
		if r == nil {
			break // not done: another one has failed, and follows
		}
		if r.Error != "" {
			return nil, &TransactionError{i, r.Error, r.More}
		}
		list = append(list, *r)
	}
	if len(list) < len(ops) {
		return nil, errors.New("the database gives fewer results than operations")
	}
	return list, nil
}
