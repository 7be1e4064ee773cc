import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.channels.DatagramChannel;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;

/**
 * Tells clients who they are, and asks such servers, with one selector of java.nio.
 *
 * <pre>
 * java Net serve PORT      HTTP over TCP, anything over UDP, on all addresses
 * java Net fetch URL...    http://ADDR:PORT or udp://ADDR:PORT, all at once
 * </pre>
 */
class Net {
    /** One connection that is asked or answered. */
    static class Exchange {
        final ByteBuffer in = ByteBuffer.allocate(4096);
        ByteBuffer out;
        boolean datagram;
        int index;
    }

    public static void main(String[] args) throws IOException {
        if (args[0].equals("serve")) {
            serve(Integer.parseInt(args[1]));
        } else {
            fetch(java.util.Arrays.copyOfRange(args, 1, args.length));
        }
    }

    static void serve(int port) throws IOException {
        Selector selector = Selector.open();
        DatagramChannel datagrams = DatagramChannel.open();
        datagrams.bind(new InetSocketAddress(port)).configureBlocking(false);
        datagrams.register(selector, SelectionKey.OP_READ);
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress(port)).configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    accept(listener, selector);
                } else if (key.channel() == datagrams) {
                    ByteBuffer buf = ByteBuffer.allocate(2048);
                    InetSocketAddress from = (InetSocketAddress) datagrams.receive(buf);
                    if (from != null) {
                        datagrams.send(bytes(address(from)), from);
                    }
                } else {
                    answer(key);
                }
            }
            selector.selectedKeys().clear();
        }
    }

    static void accept(ServerSocketChannel listener, Selector selector) throws IOException {
        SocketChannel connection = listener.accept();
        if (connection != null) {
            connection.configureBlocking(false);
            connection.register(selector, SelectionKey.OP_READ, new Exchange());
        }
    }

    static void answer(SelectionKey key) throws IOException {
        SocketChannel connection = (SocketChannel) key.channel();
        Exchange e = (Exchange) key.attachment();
        if (e.out == null) {
            if (connection.read(e.in) < 0) {
                connection.close();
                return;
            }
            if (!text(e.in).contains("\r\n\r\n")) {
                return;
            }
            String body = address((InetSocketAddress) connection.getRemoteAddress());
            e.out = bytes("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: " + body.length() + "\r\n\r\n" + body);
            key.interestOps(SelectionKey.OP_WRITE);
        }
        connection.write(e.out);
        if (!e.out.hasRemaining()) {
            connection.close();
        }
    }

    static void fetch(String[] urls) throws IOException {
        Selector selector = Selector.open();
        String[] answers = new String[urls.length];
        for (int i = 0; i < urls.length; i++) {
            ask(URI.create(urls[i]), i, selector);
        }
        long deadline = System.nanoTime() + 60_000_000_000L;
        for (int left = urls.length; left > 0; ) {
            selector.select(1000);
            if (System.nanoTime() > deadline) {
                throw new IOException("timeout");
            }
            for (SelectionKey key : selector.selectedKeys()) {
                String answer = step(key);
                if (answer != null) {
                    answers[((Exchange) key.attachment()).index] = answer;
                    key.channel().close();
                    left--;
                }
            }
            selector.selectedKeys().clear();
        }
        System.out.print(String.join("", answers));
    }

    static void ask(URI url, int index, Selector selector) throws IOException {
        InetSocketAddress to = new InetSocketAddress(url.getHost(), url.getPort());
        Exchange e = new Exchange();
        e.index = index;
        if (url.getScheme().equals("udp")) {
            e.datagram = true;
            DatagramChannel channel = DatagramChannel.open();
            channel.connect(to);
            channel.write(bytes("hello"));
            channel.configureBlocking(false);
            channel.register(selector, SelectionKey.OP_READ, e);
            return;
        }
        e.out = bytes("GET / HTTP/1.1\r\nHost: " + url.getAuthority() + "\r\nConnection: close\r\n\r\n");
        SocketChannel channel = SocketChannel.open();
        channel.configureBlocking(false);
        // In the selector before it connects.
        channel.register(selector, SelectionKey.OP_CONNECT, e);
        selector.selectNow();
        channel.connect(to);
    }

    /** Goes on with an exchange as a client, and returns the answer when it is complete. */
    static String step(SelectionKey key) throws IOException {
        Exchange e = (Exchange) key.attachment();
        if (e.datagram) {
            int n = ((DatagramChannel) key.channel()).read(e.in);
            return n > 0 ? text(e.in) : null;
        }
        SocketChannel channel = (SocketChannel) key.channel();
        if (key.isConnectable() && channel.finishConnect()) {
            key.interestOps(SelectionKey.OP_WRITE);
        } else if (key.isWritable()) {
            channel.write(e.out);
            if (!e.out.hasRemaining()) {
                key.interestOps(SelectionKey.OP_READ);
            }
        } else if (channel.read(e.in) < 0) {
            String all = text(e.in);
            if (!all.startsWith("HTTP/1.1 200 ")) {
                throw new IOException("answered " + all);
            }
            return all.substring(all.indexOf("\r\n\r\n") + 4);
        }
        return null;
    }

    static String address(InetSocketAddress a) {
        return a.getAddress().getHostAddress() + "\n";
    }

    static ByteBuffer bytes(String s) {
        return ByteBuffer.wrap(s.getBytes(StandardCharsets.US_ASCII));
    }

    static String text(ByteBuffer b) {
        return new String(b.array(), 0, b.position(), StandardCharsets.US_ASCII);
    }
}
