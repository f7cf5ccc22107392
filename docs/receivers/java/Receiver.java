import com.google.api.client.googleapis.auth.oauth2.GoogleIdToken;
import com.google.api.client.googleapis.auth.oauth2.GoogleIdTokenVerifier;
import com.google.api.client.http.javanet.NetHttpTransport;
import com.google.api.client.json.gson.GsonFactory;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.Executors;

/** Receives authenticated pushes with the web server of the JDK. */
public class Receiver {
  private static final String SERVICE_ACCOUNT = System.getenv("PUSH_SERVICE_ACCOUNT");

  /** Checks the signature, the issuer, the audience and the expiry. It keeps the certificates for as long as it may. */
  private static final GoogleIdTokenVerifier VERIFIER =
      new GoogleIdTokenVerifier.Builder(new NetHttpTransport(), GsonFactory.getDefaultInstance())
          .setPublicCertsEncodedUrl(System.getenv("PUSHHUB_URL") + "/oauth2/v1/certs")
          .setIssuer(System.getenv("PUSH_ISSUER"))
          .setAudience(List.of(System.getenv("PUSH_AUDIENCE")))
          .build();

  public static void main(String[] arguments) throws IOException {
    int port = Integer.parseInt(System.getenv("PORT"));
    HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
    server.createContext("/push", Receiver::receive);
    server.setExecutor(Executors.newCachedThreadPool());
    server.start();
  }

  /** Answers a push: 204 acknowledges the message, every other status makes PushHub push it again. */
  private static void receive(HttpExchange exchange) throws IOException {
    try (exchange) {
      int status = status(exchange.getRequestHeaders().getFirst("Authorization"));
      if (status == 204) {
        JsonObject message = body(exchange).getAsJsonObject("message");
        JsonElement data = message.get("data");
        byte[] bytes = Base64.getDecoder().decode(data == null ? "" : data.getAsString());
        String text = new String(bytes, StandardCharsets.UTF_8);
        System.out.printf("received %s: %s%n", message.get("messageId").getAsString(), text);
      }
      exchange.sendResponseHeaders(status, -1);
    }
  }

  private static JsonObject body(HttpExchange exchange) throws IOException {
    try (var reader = new InputStreamReader(exchange.getRequestBody(), StandardCharsets.UTF_8)) {
      return JsonParser.parseReader(reader).getAsJsonObject();
    }
  }

  /** Returns 401 without a valid token, 403 with one of another service account, otherwise 204. */
  private static int status(String authorization) throws IOException {
    if (authorization == null || !authorization.startsWith("Bearer ")) {
      return 401;
    }
    try {
      GoogleIdToken token = VERIFIER.verify(authorization.substring("Bearer ".length()));
      if (token == null) {
        return 401;
      }
      GoogleIdToken.Payload claims = token.getPayload();
      boolean isPusher = SERVICE_ACCOUNT.equals(claims.getEmail()) && Boolean.TRUE.equals(claims.getEmailVerified());
      return isPusher ? 204 : 403;
    } catch (GeneralSecurityException | IllegalArgumentException error) {
      return 401; // it is not a token
    }
  }
}
