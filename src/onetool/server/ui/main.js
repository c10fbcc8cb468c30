/** Entry point: loads the frame, which shows the screen that the URL names. */
import "./core/frame.js";
