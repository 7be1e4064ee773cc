// Package ovsdb is a client of the Open vSwitch Database Management Protocol (RFC 7047): the
// methods that package offload needs.
//
// A Client owns one connection, which its caller has made (Dial), and closes it. It knows no schema. What comes
// from the server is checked and has a limit: the server may be another machine. It needs no
// privileges.
package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Database is the name of Open vSwitch's.
const Database = "Open_vSwitch"

// messageMax is the size of a message from the server, in bytes: a dump of 10,000 ports has less.
const messageMax = 64 << 20

// writeTimeout is how long the server may leave a message unread.
const writeTimeout = 10 * time.Second

// ErrClosed is the error of calls after Close, or after the connection has ended.
var ErrClosed = errors.New("the connection to the database has ended")

// Client is a connection to a server. Its methods may be called by several goroutines.
type Client struct {
	conn  net.Conn
	ended chan struct{} // closed when the connection has ended

	write sync.Mutex // guards writes to conn: a message at a time

	mu      sync.Mutex // guards the rest
	err     error      // why the connection has ended
	next    uint64     // the id of the next request
	waiting map[uint64]chan answer
	monitor *Monitor
	locked  map[string]chan bool // by the lock's name
}

// message is a request, a notification or an answer of JSON-RPC 1.0 (RFC 7047, section 4).
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`
}

type answer struct {
	result json.RawMessage
	err    error
}

// NewClient reads from a connection until Close, or until the server ends it.
func NewClient(conn net.Conn) *Client {
	c := &Client{conn: conn, ended: make(chan struct{}), waiting: map[uint64]chan answer{}, locked: map[string]chan bool{}}
	go c.read()
	return c
}

// Close ends the connection, if it has not ended. Calls that wait return ErrClosed.
func (c *Client) Close() error {
	err := c.conn.Close()
	<-c.ended
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Ended is closed when the connection has ended. Err then says why.
func (c *Client) Ended() <-chan struct{} { return c.ended }

// Err says why the connection has ended; nil as long as it has not.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// limited fails when more than a message's bytes were read since the last message.
type limited struct {
	r    io.Reader
	left int
}

func (l *limited) Read(b []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("a message has more than %d bytes", messageMax)
	}
	n, err := l.r.Read(b[:min(len(b), l.left)])
	l.left -= n
	return n, err
}

// read serves the server's messages.
func (c *Client) read() {
	from := &limited{r: c.conn, left: messageMax}
	d := json.NewDecoder(from)
	var err error
	for err == nil {
		var m message
		from.left = messageMax
		if err = d.Decode(&m); err == nil {
			err = c.take(&m)
		}
	}
	c.conn.Close()
	c.mu.Lock()
	c.err = fmt.Errorf("%w: %w", ErrClosed, err)
	for id, w := range c.waiting {
		delete(c.waiting, id)
		w <- answer{err: c.err}
	}
	c.mu.Unlock()
	close(c.ended)
}

// take handles one message. An error ends the connection.
func (c *Client) take(m *message) error {
	switch m.Method {
	case "":
		return c.answer(m)
	case "echo": // the server's probe, section 4.1.11
		return c.send(message{ID: m.ID, Result: m.Params, Error: json.RawMessage("null")})
	case "update":
		return c.update(m.Params)
	case "locked", "stolen":
		return c.lockChanged(m.Params, m.Method == "locked")
	}
	return nil
}

func (c *Client) answer(m *message) error {
	var id uint64
	if err := json.Unmarshal(m.ID, &id); err != nil {
		return fmt.Errorf("answer to request %s, which has no such id", m.ID)
	}
	c.mu.Lock()
	w := c.waiting[id]
	delete(c.waiting, id)
	c.mu.Unlock()
	if w == nil {
		return nil // its caller waits no more
	}
	a := answer{result: m.Result}
	if len(m.Error) > 0 && string(m.Error) != "null" {
		a.err = fmt.Errorf("the database refuses the request: %s", m.Error)
	}
	w <- a
	return nil
}

func (c *Client) send(m any) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	c.write.Lock()
	defer c.write.Unlock()
	if err := c.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err = c.conn.Write(text)
	return err
}

// call sends a request and waits for the answer.
func (c *Client) call(ctx context.Context, method string, params ...any) (json.RawMessage, error) {
	w := make(chan answer, 1)
	c.mu.Lock()
	if err := c.err; err != nil {
		c.mu.Unlock()
		return nil, err
	}
	id := c.next
	c.next++
	c.waiting[id] = w
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, id)
		c.mu.Unlock()
	}()
	err := c.send(map[string]any{"id": id, "method": method, "params": params})
	if err != nil {
		c.conn.Close() // half a message may have been sent
		return nil, fmt.Errorf("ask the database (%s): %w", method, err)
	}
	select {
	case a := <-w:
		return a.result, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("the database does not answer (%s): %w", method, context.Cause(ctx))
	}
}

// TryLock asks for a lock of the server's (section 4.1.8), and tells whether the client has it. If
// not, it waits for the lock in the server: Locked tells of it. The lock ends with the connection.
func (c *Client) TryLock(ctx context.Context, name string) (bool, error) {
	c.mu.Lock()
	if c.locked[name] == nil {
		c.locked[name] = make(chan bool, 1)
	}
	c.mu.Unlock()
	text, err := c.call(ctx, "lock", name)
	if err != nil {
		return false, err
	}
	var r struct {
		Locked bool `json:"locked"`
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return false, fmt.Errorf("read answer about lock %s: %w", name, err)
	}
	return r.Locked, nil
}

// Held tells whether another client has a lock. If nobody has it, the client has it for a moment.
func (c *Client) Held(ctx context.Context, name string) (bool, error) {
	free, err := c.TryLock(ctx, name)
	if err != nil {
		return false, err
	}
	_, err = c.call(ctx, "unlock", name) // also ends the wait for it (section 4.1.10)
	return !free, err
}

// Locked tells whether the client gets a lock for which it waits (true) or has lost it (false).
// TryLock was called before.
func (c *Client) Locked(name string) <-chan bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.locked[name]
}

func (c *Client) lockChanged(params json.RawMessage, has bool) error {
	var names []string
	if err := json.Unmarshal(params, &names); err != nil || len(names) != 1 {
		return fmt.Errorf("news of a lock: %s", params)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	news := c.locked[names[0]]
	if news == nil {
		return nil
	}
	select {
	case <-news: // what was not read is old
	default:
	}
	news <- has
	return nil
}
