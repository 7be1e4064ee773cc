package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"time"
)

// traceLineMax is more than any line of a trace takes.
const traceLineMax = 1 << 20

// Relog logs the lines of a trace as the agent logged them, until the trace ends. Then Relog closes
// the trace.
func Relog(lines io.ReadCloser, to slog.Handler) error {
	defer lines.Close()
	ctx := context.Background()
	scanner := bufio.NewScanner(lines)
	scanner.Buffer(nil, traceLineMax)
	for scanner.Scan() {
		r, err := parseLine(scanner.Bytes())
		if err == nil && to.Enabled(ctx, r.Level) {
			err = to.Handle(ctx, r)
		}
		if err != nil {
			return err
		}
	}
	return scanner.Err()
}

// parseLine parses a line of a trace. It keeps the order of the attributes.
func parseLine(line []byte) (slog.Record, error) {
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "decisions were lost", 0)
	d := json.NewDecoder(bytes.NewReader(line))
	_, err := d.Token() // {
	for err == nil && d.More() {
		var key json.Token
		var value json.RawMessage
		if key, err = d.Token(); err == nil {
			err = d.Decode(&value)
		}
		if err == nil {
			err = take(&r, fmt.Sprint(key), value)
		}
	}
	if err != nil {
		return r, fmt.Errorf("read trace: %w", err)
	}
	return r, nil
}

func take(r *slog.Record, key string, value json.RawMessage) error {
	switch key {
	case slog.TimeKey:
		return json.Unmarshal(value, &r.Time)
	case slog.LevelKey:
		return json.Unmarshal(value, &r.Level)
	case slog.MessageKey:
		return json.Unmarshal(value, &r.Message)
	}
	text := string(value)
	if value[0] == '"' {
		if err := json.Unmarshal(value, &text); err != nil {
			return err
		}
	}
	r.AddAttrs(slog.String(key, text))
	return nil
}
