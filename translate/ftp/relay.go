package ftp

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// lastWords is how long one side may go on after the other has ended.
const lastWords = 2 * time.Minute

// chunk is how much is read at a time, in bytes.
const chunk = 4096

// Relay carries a control connection, until both sides have ended or one has failed. Then it closes both
// connections. The memory that it uses is bounded by LineMax.
func Relay(client, server net.Conn, c Config) error {
	s := New(c)
	// toClient is held from the decision until the client has its bytes, so that replies keep
	// their order.
	var toClient sync.Mutex
	pass := func(from, to net.Conn, take func([]byte) (Output, error)) error {
		buf := make([]byte, chunk)
		for {
			n, rerr := from.Read(buf)
			toClient.Lock()
			out, err := take(buf[:n])
			if len(out.Client) > 0 {
				_, werr := client.Write(out.Client)
				err = errors.Join(err, werr)
			}
			toClient.Unlock()
			if len(out.Server) > 0 {
				_, werr := server.Write(out.Server)
				err = errors.Join(err, werr)
			}
			if errors.Is(rerr, io.EOF) && err == nil {
				return endWriting(to)
			}
			if err = errors.Join(err, rerr); err != nil {
				return err
			}
		}
	}
	ended := make(chan error, 2)
	go func() { ended <- pass(client, server, s.FromClient) }()
	go func() { ended <- pass(server, client, s.FromServer) }()
	err := <-ended
	if err == nil {
		deadline := time.Now().Add(lastWords)
		err = errors.Join(client.SetDeadline(deadline), server.SetDeadline(deadline))
	}
	if err != nil {
		err = errors.Join(err, client.Close(), server.Close())
		<-ended
		return err
	}
	return errors.Join(<-ended, client.Close(), server.Close())
}

// endWriting tells a peer that nothing more comes.
func endWriting(c net.Conn) error {
	if half, is := c.(interface{ CloseWrite() error }); is {
		return half.CloseWrite()
	}
	return c.Close()
}
