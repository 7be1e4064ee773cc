package ovsdb

import (
	"encoding/json"
	"fmt"
)

// Row has columns as the server sends them (RFC 7047, section 5.1).
type Row map[string]json.RawMessage

// uuid reads ["uuid", TEXT].
type uuid string

func (u *uuid) UnmarshalJSON(text []byte) error {
	var pair []string
	if err := json.Unmarshal(text, &pair); err != nil || len(pair) != 2 || pair[0] != "uuid" {
		return fmt.Errorf("%.60s is no UUID", text)
	}
	*u = uuid(pair[1])
	return nil
}

// String reads a column that is a string, or an empty set.
func (r Row) String(column string) (string, error) { return one[string](r, column) }

// Int reads a column that is a number, or an empty set: 0.
func (r Row) Int(column string) (int, error) { return one[int](r, column) }

// UUID reads a column that refers to a row, or an empty set. The column _uuid is the row's own.
func (r Row) UUID(column string) (string, error) {
	u, err := one[uuid](r, column)
	return string(u), err
}

// UUIDs reads a column that refers to any number of rows.
func (r Row) UUIDs(column string) ([]string, error) {
	set, err := elements[uuid](r[column])
	if err != nil {
		return nil, fmt.Errorf("column %s: %w", column, err)
	}
	var list []string
	for _, u := range set {
		list = append(list, string(u))
	}
	return list, nil
}

// Strings reads a column of any number of strings.
func (r Row) Strings(column string) ([]string, error) {
	set, err := elements[string](r[column])
	if err != nil {
		return nil, fmt.Errorf("column %s: %w", column, err)
	}
	return set, nil
}

// Map reads a column that maps strings to strings.
func (r Row) Map(column string) (map[string]string, error) {
	var value []json.RawMessage
	var kind string
	var pairs [][]string
	err := json.Unmarshal(r[column], &value)
	if err == nil && len(value) == 2 {
		err = json.Unmarshal(value[0], &kind)
	}
	if err == nil && kind == "map" {
		err = json.Unmarshal(value[1], &pairs)
	}
	if err != nil || kind != "map" {
		return nil, fmt.Errorf("column %s: %.60s is no map", column, r[column])
	}
	m := map[string]string{}
	for _, p := range pairs {
		if len(p) != 2 {
			return nil, fmt.Errorf("column %s: %.60s is no map", column, r[column])
		}
		m[p[0]] = p[1]
	}
	return m, nil
}

func one[T any](r Row, column string) (value T, err error) {
	set, err := elements[T](r[column])
	if err == nil && len(set) > 1 {
		err = fmt.Errorf("%d values", len(set))
	}
	if err != nil {
		return value, fmt.Errorf("column %s: %w", column, err)
	}
	if len(set) == 1 {
		value = set[0]
	}
	return value, nil
}

// elements reads a set. A set of one element may be written as the element.
func elements[T any](text json.RawMessage) ([]T, error) {
	var single T
	if json.Unmarshal(text, &single) == nil {
		return []T{single}, nil
	}
	var value []json.RawMessage
	var kind string
	var set []T
	err := json.Unmarshal(text, &value)
	if err == nil && len(value) == 2 {
		err = json.Unmarshal(value[0], &kind)
	}
	if err == nil && kind == "set" {
		err = json.Unmarshal(value[1], &set)
	}
	if err != nil || kind != "set" {
		return nil, fmt.Errorf("%.60s is not of the expected type", text)
	}
	return set, nil
}
